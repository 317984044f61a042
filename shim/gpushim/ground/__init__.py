"""What everything stands on: errors, bounds, types, JSON, logs, this boot, gpushim's own directories."""
