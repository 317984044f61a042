"""gpushim-mps@.service, confined by a real systemd: it serves, the host sees its mount, it comes back, and goes.

The machine is that of test_refresh_service.py.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.cgroupunits import SERVICE, TARGET
from e2e.trymachine import UNITS, tried

NAME = "gpushim-mps@.service"
DROP_IN = """[Unit]
DefaultDependencies=no
[Service]
ExecStart=
ExecStart=/usr/bin/gpushim-device-plugin --config-file=/etc/gpushim/sharing.json --mps %i
RestartSec=100ms
StandardError=append:/mnt/log
"""
TRY = """
name=gpushim-mps@gpu.service
top=/run/gpushim/mps/gpu
wait_for() { for try in $(seq 150); do ! eval "$1" || return 0; sleep 0.1; done; echo never: "$1"; }
mode() { cat ROOT/usr/lib/fakehost/compute-mode-UUID; }
daemon() { sed 's/.*"pid": \\([0-9]*\\).*/\\1/' $top/state.json; }
systemctl start $name
echo $(systemctl is-active $name) $(mode) $(grep -c " $top/private/shm " /proc/mounts)
grep -o 'set_default_.*' $top/log/control.log
first=$(daemon)
kill -KILL $first
wait_for '[ -e $top/state.json ] && [ $(daemon) != $first ]'
echo again: $(systemctl is-active $name) $(mode)
first=$(daemon)
systemctl kill --kill-whom=main --signal=KILL $name
wait_for '[ -e $top/state.json ] && [ $(daemon) != $first ]'
echo killed: $(systemctl is-active $name) $(mode)
systemctl stop $name
echo stopped: $(systemctl show $name --property Result --value) $(mode) $(ls $top | tr '\\n' ' ')
! systemctl start gpushim-mps@other.service
echo other: $(systemctl show gpushim-mps@other.service --property ExecMainStatus --value)
"""
SAID = """active 3 1
set_default_active_thread_percentage 25
set_default_device_pinned_mem_limit 0 10240M
again: active 3
killed: active 3
stopped: success 0 lock log pipe private
other: 15
"""


@pytest.fixture
def machine() -> Iterator[Path]:
    """A host with a GPU that is shared, and what systemd is to start."""
    with tempfile.TemporaryDirectory(prefix="mps") as name:  # a path short enough for sockets
        top = Path(name)
        host = fakehost.build(str(top / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        (top / "config.toml").write_text(f'[driver]\nroot = "{host.root}"\n')
        rows = [{"name": "gpu", "replicas": 4}]
        (top / "sharing.json").write_text(json.dumps({"version": "v1", "sharing": {"mps": {"resources": rows}}}))
        for folder in ("bin", f"units/{NAME}.d"):
            (top / folder).mkdir(parents=True)
        (top / "bin/gpushim-device-plugin").symlink_to(trees.TOP / "bin/gpushim-device-plugin")
        drop_in = DROP_IN.replace("/etc/gpushim/sharing.json", str(top / "sharing.json"))
        (top / f"units/{NAME}.d/test.conf").write_text(drop_in)
        shutil.copy(UNITS / NAME, top / "units")
        (top / "units/try.target").write_text(TARGET)
        (top / "units/try.service").write_text(SERVICE)
        (top / "try.sh").write_text(TRY.replace("ROOT", host.root).replace("UUID", host.gpus[0].uuid))
        yield top


def test_it_serves_as_it_is_confined(machine: Path) -> None:
    code, said, why = tried(machine)
    assert (code, said) == (0, SAID), why
