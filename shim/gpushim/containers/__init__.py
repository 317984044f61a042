"""Which containers and pods there are, and which of them has which GPU."""
