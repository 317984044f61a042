"""A Python that has no grpcio."""

from __future__ import annotations

# Runs the program as where Python has no grpcio.
WITHOUT_GRPC = (
    "/usr/bin/python3",
    "-c",
    "import sys, runpy; sys.modules['grpc'] = None; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])",
)
