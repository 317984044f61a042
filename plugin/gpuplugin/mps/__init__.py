"""MPS and time slices: a supervisor, and its unit, for each group of GPUs."""
