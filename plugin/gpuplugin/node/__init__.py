"""gpushim-node: what gpushim's image does to its node."""
