"""The paper's experiments as data, run as resumable parallel jobs, one folder each."""
