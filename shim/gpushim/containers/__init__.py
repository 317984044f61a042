"""Which containers and pods there are, which of them has which GPU, and kubeconfigs."""
