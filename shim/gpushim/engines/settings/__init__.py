"""Files of settings of any engine: read with checks, replaced whole, and those that are gpushim's own."""
