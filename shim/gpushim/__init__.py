"""Give containers the NVIDIA GPUs they ask for: an OCI runtime shim, its inventory and its command line."""

__version__ = "0.1.0"
