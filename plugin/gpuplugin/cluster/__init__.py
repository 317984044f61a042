"""The containers that talk to the API server: labels, profiles, slices, claims."""
