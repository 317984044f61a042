"""What everything stands on: errors, bounds, types, JSON, logs, this system's boot and gpushim's own places."""
