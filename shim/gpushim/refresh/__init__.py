"""Renew the snapshot: one refresh, the one that keeps on, and who asks for it."""
