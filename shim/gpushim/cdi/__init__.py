"""CDI: specs in /etc/cdi and /var/run/cdi say what a container gets with a device.

Out of scope: deciding what our own GPUs bring (gpushim.decision.plan).
"""
