"""What imitates nvidia-container-cli: its command line, and its `info` and `list`."""
