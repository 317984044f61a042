"""MPS: a control daemon for each group of GPUs, and its unit."""
