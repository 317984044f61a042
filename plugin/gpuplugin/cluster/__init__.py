"""What asks the API server, in containers of their own: labels, profiles, slices, claims."""
