"""Dynamic resource allocation: GPUs by claim. The DRA driver, a second front beside the device plugin."""
