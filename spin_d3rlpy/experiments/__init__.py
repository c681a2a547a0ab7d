"""The paper's experiments as data, and what runs them: one folder a job, resumable, in parallel."""
