"""Decide what a container gets: request, snapshot and configuration become edits."""
