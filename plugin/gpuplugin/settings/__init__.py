"""Settings of resources, sharing, health and profiles."""
