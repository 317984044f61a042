"""Files of settings of any engine, and those that are gpushim's own: read with checks, replaced whole."""
