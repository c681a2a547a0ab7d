"""Files: atomic writes, locks, settings and results, and input that anyone may have made."""
