"""The snapshot as the plugin has it: kept, watched, renewed, let go."""
