"""Search for actions better than the data's, by critics of whole actions, and trust in it."""
