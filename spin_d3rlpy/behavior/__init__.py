"""Training of the behavior policies that the shipped datasets are made with."""
