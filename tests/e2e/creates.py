"""A machine on which containers are created until something has ended."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import packages
from e2e.engines import SYSTEM_PATH
from e2e.installed import Machine

SUITE = "trixie"
ASKS = "NVIDIA_VISIBLE_DEVICES=0,2"
# The arguments: the bundle, the file that ends it. Each tenth create finds no snapshot, and lists the GPUs itself.
CREATES = """
cp "$1/config.json" "$1/plain"
made=0
while [ ! -e "$2" ]; do
    cp "$1/plain" "$1/config.json"
    [ $((made % 10)) != 0 ] || rm -rf "$GPUSHIM_STATE"
    gpushim-runtime create --bundle "$1" id$made
    grep -q /dev/nvidia1 "$1/config.json"
    made=$((made + 1))
    sleep 0.05
done
echo $made
"""


@pytest.fixture
def there(debian_tree: Path) -> Iterator[Machine]:
    with packages.machine(SUITE, debian_tree) as there:
        yield there


@contextlib.contextmanager
def beside(there: Machine, script: str, *, stub: Path | None = None) -> Iterator[list[int]]:
    """Run a script beside the block, until that ends; the list gets the number that the script counted to."""
    bundle, end, counted = packages.bundle(there), there.state / f"end-{len(script)}", list[int]()
    bundle.ask(ASKS, args=["/bin/true"])
    env = {"PATH": SYSTEM_PATH}
    if stub:
        config = bundle.directory.parent / "config.toml"
        config.write_text(f'[driver]\nroot = "{there.host.root}"\n[runtime]\nlow-level = ["{stub}"]\n')
        env |= {"GPUSHIM_CONFIG": str(config), "GPUSHIM_STATE": str(bundle.directory.parent / "state")}
    command = [*there.prefix, "/bin/sh", "-euc", script, "sh", str(bundle.directory), str(end)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield counted
        finally:
            end.touch()
            said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, said + errors
    assert errors == ""
    counted.append(int(said))
