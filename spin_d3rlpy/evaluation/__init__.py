"""Evaluation of policies: metrics, evaluators and fitted Q evaluation."""
