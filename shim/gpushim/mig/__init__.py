"""MIG layouts: what a file says that GPUs are to be cut into, what that changes, and the change."""
