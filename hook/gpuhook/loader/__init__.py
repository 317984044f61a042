"""Make the container's loader find the driver's libraries."""
