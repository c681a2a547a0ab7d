"""Offline episodes on the training device, and how batches of them are drawn."""
