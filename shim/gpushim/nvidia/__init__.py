"""What imitates NVIDIA's programs, or reads their settings."""
