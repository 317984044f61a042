"""What kubelet is offered, and what a container gets that asks for it."""
