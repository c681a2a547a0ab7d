"""Stands for somebody else's package: an objective and a policy that this one knows nothing of."""
