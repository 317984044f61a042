"""Finish a GPU container below its rootfs: the prestart hook and the only code that touches a rootfs."""
