"""The snapshot as the plugin has it: read, watched, asked for, let go."""
