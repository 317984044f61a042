"""A bundle's config.json: what the container asks for, and how edits are put into it."""
