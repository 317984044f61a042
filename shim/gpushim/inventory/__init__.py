"""What the host has: GPUs, MIG instances, device nodes and the driver's files, kept as a snapshot."""
