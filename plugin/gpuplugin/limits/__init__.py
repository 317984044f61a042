"""Limits of memory for containers that share a GPU."""
