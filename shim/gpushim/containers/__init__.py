"""Which containers and pods there are, which of them has which GPU, and where the API server is that knows them."""
