"""Paths: who may change a file, how one below a rootfs, a driver root or the host is reached, read and replaced."""
