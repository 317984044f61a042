"""The Kubernetes device plugin: it tells kubelet which GPUs a node has, and what a container gets of them."""

import os

# Read by grpc's library when it is loaded. Its lines about lost connections are no news, and not in the log's form.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
