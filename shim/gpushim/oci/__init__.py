"""A bundle's config.json: the request in it, and how edits are put into it."""
