"""Give containers their NVIDIA GPUs: an OCI runtime shim, its inventory and its command line."""

__version__ = "0.1.0"
