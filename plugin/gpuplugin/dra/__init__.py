"""The DRA driver: GPUs by claim, a second front beside the device plugin."""
