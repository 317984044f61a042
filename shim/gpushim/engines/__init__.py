"""Container engines: a module or room of each plans and verifies its settings."""
