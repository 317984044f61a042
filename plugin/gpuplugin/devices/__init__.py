"""Which devices a node gives, in which division, and which go well together."""
