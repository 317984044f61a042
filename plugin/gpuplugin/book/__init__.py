"""The book: who was given which GPU, over restarts and instances."""
