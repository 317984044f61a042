"""Explain what a container would get, what not, and why."""
