"""Files of engines' settings: read with checks, replaced whole."""
