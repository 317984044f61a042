"""Finish a GPU container: the prestart hook, and the only code that touches a rootfs."""
