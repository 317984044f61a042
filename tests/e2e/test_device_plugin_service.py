"""gpushim-device-plugin.service, confined by a real systemd: it registers, lists GPUs, comes back, and goes.

The machine is that of test_refresh_service.py; kubelet is the unit tests', whose directory the machine shares.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.test_refresh_service import UNITS, tried
from e2e.test_systemd_reload import SERVICE, TARGET
from unit.gpuplugin.kubelet import Kubelet

NAME = "gpushim-device-plugin.service"
DROP_IN = """[Unit]
DefaultDependencies=no
[Service]
ExecStart=
ExecStart=/usr/bin/gpushim-device-plugin --kubelet-dir={kubelet}
StandardError=append:/mnt/log
"""
TRY = """
name=gpushim-device-plugin.service
wait_for() { for try in $(seq 150); do ! eval "$1" || return 0; sleep 0.1; done; echo never: "$1"; }
pid() { systemctl show $name --property MainPID --value; }
registered() { grep -c 'kubelet has registered' /mnt/log || true; }
systemctl start $name
wait_for '[ $(registered) = 1 ]'
ls /run/cdi
test -c ROOT/dev/nvidia-uvm && echo modules loaded
for signal in KILL HUP; do
  before=$(registered)
  systemctl kill --signal=$signal $name
  wait_for '[ $(registered) -gt $before ]'
  echo $signal: $(systemctl is-active $name)
done
echo '[' >>/etc/gpushim/config.toml
systemctl kill --signal=KILL $name
wait_for '[ $(systemctl is-active $name) = failed ]'
echo broken: $(systemctl show $name --property ExecMainStatus --value)
sed -i '/^.$/d' /etc/gpushim/config.toml
before=$(registered)
systemctl restart $name
wait_for '[ $(registered) -gt $before ]'
systemctl stop $name
echo stopped: $(systemctl show $name --property Result --value)
"""
SAID = """nvidia.com-gpu.json
modules loaded
KILL: active
HUP: active
broken: 15
stopped: success
"""


@pytest.fixture
def machine() -> Iterator[Path]:
    """A host after a boot, with a module missing, and what systemd is to start."""
    with tempfile.TemporaryDirectory(prefix="plugin") as name:  # a path short enough for sockets
        top = Path(name)
        host = fakehost.build(str(top / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        host.unload("nvidia_uvm")
        (top / "config.toml").write_text(f'[driver]\nroot = "{host.root}"\n')
        for folder in ("bin", f"units/{NAME}.d", "kubelet/device-plugins"):
            (top / folder).mkdir(parents=True)
        (top / "bin/gpushim-device-plugin").symlink_to(trees.TOP / "bin/gpushim-device-plugin")
        (top / f"units/{NAME}.d/test.conf").write_text(DROP_IN.format(kubelet=top / "kubelet"))
        shutil.copy(UNITS / NAME, top / "units")
        (top / "units/try.target").write_text(TARGET)
        (top / "units/try.service").write_text(SERVICE)
        (top / "try.sh").write_text(TRY.replace("ROOT", host.root))
        yield top


def test_it_serves_as_it_is_confined(machine: Path) -> None:
    folder = machine / "kubelet/device-plugins"

    async def run() -> None:
        kubelet = Kubelet(folder)
        await kubelet.start()
        try:
            code, said, why = await asyncio.to_thread(tried, machine)
        finally:
            await kubelet.stop()
        assert (code, said) == (0, SAID), why

    asyncio.run(run())
    assert [path.name for path in folder.iterdir() if path.name.startswith(("gpushim", ".gpushim"))] == []
