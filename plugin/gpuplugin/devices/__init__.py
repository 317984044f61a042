"""Which devices a node has to give, in which division, and which of them go well together."""
