"""Container engines: each a row of processes/table.py and a module or room that plans and verifies its settings."""
