"""The Kubernetes device plugin: it tells kubelet which GPUs a node has, and what a container gets of them."""
