"""Critics: action values of slots or of whole actions, and state values."""
