"""What imitates nvidia-container-cli: its command line, and what its `info` and `list` print."""
