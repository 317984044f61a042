"""Decide what a container gets: the request, the snapshot and the configuration become edits."""
