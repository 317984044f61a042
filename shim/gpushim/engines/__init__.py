"""Container engines: a module or package for each plans and verifies its settings."""
