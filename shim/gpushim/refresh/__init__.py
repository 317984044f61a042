"""Renew what gpushim knows of the host: one refresh, the one that keeps on, and who asks for it."""
