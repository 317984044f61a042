"""What the administrator allows: config.toml and its schema, and a kubeconfig."""
