"""Programs that the plugin starts, and its loop's own tasks and counts."""
