"""Before any test imports grpc."""

import os

# Python before 3.10 starts processes by fork(2), in which grpc's handlers abort; the plugin spawns its child.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
