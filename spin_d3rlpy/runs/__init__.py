"""Runs as folders: settings, training, learning curves, the policy, plots and playing it."""
