"""Why a GPU is unhealthy, and since when."""
