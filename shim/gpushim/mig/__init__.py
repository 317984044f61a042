"""MIG layouts: what a file changes on this host, and the change."""
