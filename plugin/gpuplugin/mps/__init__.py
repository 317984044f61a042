"""MPS and time slices: a supervisor for each group of GPUs, of the settings or of a claim, and its unit."""
