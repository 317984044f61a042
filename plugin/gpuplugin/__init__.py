"""The Kubernetes device plugin, and what it shares with the DRA driver."""

import os

# Read by grpc's library when it is loaded. Its lines about lost connections are no news, and not in the log's form.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
