"""Build a simulated GPU host from the command line: `python3 tests/fakehost --root DIR --gpus N`."""

from __future__ import annotations

import argparse
import os
import sys

# Started by its path, the directory above is not on sys.path yet.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from fakehost import build, layouts


def main() -> int:
    """Build the host that the arguments describe, and print what was built.

    Returns:
        0; 1 after a sentence on stderr that says why it could not be built.
    """
    parser = argparse.ArgumentParser(prog="fakehost", description="Build a simulated GPU host in a directory.")
    parser.add_argument("--root", required=True, help="directory to build in")
    parser.add_argument("--gpus", type=int, default=2, help="number of GPUs (default 2)")
    parser.add_argument("--driver", default="535.183.01", help="driver version (default %(default)s)")
    parser.add_argument("--cuda", default="12.2", help="CUDA version of the driver (default %(default)s)")
    parser.add_argument("--mig", action="store_true", help="divide GPU 0 into MIG devices")
    parser.add_argument("--libdir", help="library directory below the root, if not the layout's")
    parser.add_argument("--layout", choices=layouts.LIBDIRS, default="debian", help="where files are")
    parser.add_argument("--complete", action="store_true", help="add what only newer drivers have")
    parser.add_argument("--mps", action="store_true", help="with an MPS control daemon's directory")
    parser.add_argument("--no-nodes", action="store_true", help="make no device nodes")
    given = parser.parse_args()
    try:
        host = build(
            given.root,
            given.gpus,
            driver=given.driver,
            cuda=given.cuda,
            mig=given.mig,
            libdir=given.libdir,
            layout=given.layout,
            complete=given.complete,
            mps=given.mps,
            nodes=not given.no_nodes,
        )
    except (OSError, RuntimeError, ValueError) as error:
        print(f"fakehost: {error}", file=sys.stderr)
        return 1
    for gpu in host.gpus:
        print(f"GPU {gpu.index}: /dev/nvidia{gpu.minor} {gpu.pci} {gpu.uuid} {gpu.model}")
        for mig in gpu.mig:
            print(f"  MIG {mig.profile}: {mig.uuid}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
