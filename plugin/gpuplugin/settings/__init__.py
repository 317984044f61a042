"""What the administrator says of resources, sharing, health and profiles."""
