"""gpushim-device-plugin.service, confined by a real systemd: it registers, starts MPS, comes back, and goes.

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
from e2e.cgroupunits import SERVICE, TARGET
from e2e.trymachine import UNITS, tried
from unit.gpuplugin.kubelet.fake import Kubelet

NAME, KEEP, MPS = "gpushim-device-plugin.service", "gpushim-refresh-keep.service", "gpushim-mps@.service"
DROP_IN = """[Unit]
DefaultDependencies=no
[Service]
StandardError=append:/mnt/log
"""
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"  # as docs/labels.md has it
SETTINGS = f"""[device-plugin]
metrics = ":9400"
labels-file = "{FEATURES}/gpushim"
config-file = "{{0}}/plugin.yaml"
kubelet-dir = "{{0}}/kubelet"
"""
# As docs/sharing.md has them: slices of MPS for the processes of all users.
PROFILES = """default: none
profiles:
  none: {}
  small: {sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}}
  mps:
    sharing:
      mps:
        resources:
        - name: gpu
          multiUser: true
          slices:
          - {name: gpu.20gb, memory: 20Gi, threads: 50, count: 1}
          - {name: gpu.10gb, memory: 10Gi, threads: 25, count: 2}
"""
TRY = """
name=gpushim-device-plugin.service
wait_for() { for try in $(seq 150); do ! eval "$1" || return 0; sleep 0.1; done; echo never: "$1"; }
pid() { systemctl show $name --property MainPID --value; }
registered() { grep -c 'kubelet has registered' /mnt/log || true; }
ready() { python3 -c "import urllib.request as u; u.urlopen('http://$1:9400/readyz')" 2>/dev/null; }
ip link set lo up
mkdir -p FEATURES
systemctl start $name
wait_for '[ $(registered) = 1 ]'
for address in 127.0.0.1 '[::1]'; do
  wait_for "ready $address"
  echo metrics: $address
done
wait_for '[ -s FEATURES/gpushim ]'
grep count= FEATURES/gpushim
echo small >/etc/gpushim/profile
wait_for 'grep -q replicas=2 FEATURES/gpushim'
echo profile: small
echo mps >/etc/gpushim/profile
wait_for '[ $(systemctl is-active gpushim-mps@gpu) = active ]'
grep -ho 'begins -M\\|set_default.*' /run/gpushim/mps/gpu/log/control.log
echo small >/etc/gpushim/profile
wait_for '[ $(systemctl is-active gpushim-mps@gpu) = inactive ]'
echo mps: $(systemctl show gpushim-mps@gpu --property Result --value) $(ls /run/gpushim/mps)
ls /run/cdi
test -c ROOT/dev/nvidia-uvm && echo modules loaded
for signal in KILL HUP; do
  before=$(registered)
  systemctl kill --signal=$signal $name
  wait_for '[ $(registered) -gt $before ]'
  echo $signal: $(systemctl is-active $name)
done
stat -c '%A %n' /var/lib/gpushim/device-plugin /var/lib/gpushim/device-plugin/allocations.lock
mkdir /etc/labels
cp /etc/gpushim/config.toml /run/before
socket=/run/gpushim/metrics.sock
sed -i -e 's|^metrics = .*|metrics = "unix:'$socket'"|' -e 's|FEATURES|/etc/labels|' /etc/gpushim/config.toml
wait_for 'grep -q "labels cannot be written to /etc/labels/gpushim: Read-only file system" /mnt/log'
wait_for '[ "$(stat -c %a $socket)" = 600 ]'
printf '[Service]\\nReadWritePaths=/etc/labels\\n' >/run/systemd/system/$name.d/labels.conf
systemctl daemon-reload
systemctl restart $name
wait_for 'grep -q count=1 /etc/labels/gpushim'
wait_for 'curl -s --unix-socket $socket http://x/readyz | grep -q ok' && echo elsewhere: unix, labels
python3 -c 'import socket, time; held = socket.create_server(("", 9400)); open("/run/held", "w")
time.sleep(100)' &
wait_for '[ -e /run/held ]'
sed -i 's|^metrics = .*|metrics = ":9400"|' /etc/gpushim/config.toml
wait_for 'gpushim device-plugin status 2>&1 | grep -q "metrics cannot be served at :9400: .*in use"'
kill $!
wait_for 'ready 127.0.0.1'
! gpushim device-plugin status 2>&1 | grep 'cannot be served'
cp /run/before /etc/gpushim/config.toml
echo '[' >>/etc/gpushim/config.toml
systemctl kill --signal=KILL $name
wait_for '[ $(systemctl is-active $name) = failed ]'
echo broken: $(systemctl show $name --property ExecMainStatus --value)
sed -i '/^.$/d' /etc/gpushim/config.toml
before=$(registered)
systemctl restart $name
wait_for '[ $(registered) -gt $before ]'
keep=gpushim-refresh-keep.service
echo keep: $(systemctl is-active $keep)
systemctl stop $name
echo stopped: $(systemctl show $name --property Result --value)
wait_for '[ $(systemctl is-active $keep) = inactive ]' && echo with it: $keep
"""
SAID = """metrics: 127.0.0.1
metrics: [::1]
nvidia.com/gpu.count=1
profile: small
begins -M
set_default_active_thread_percentage 50
set_default_device_pinned_mem_limit 0 20480M
mps: success
nvidia.com-gpu.json
modules loaded
KILL: active
HUP: active
drwx------ /var/lib/gpushim/device-plugin
-rw------- /var/lib/gpushim/device-plugin/allocations.lock
elsewhere: unix, labels
broken: 15
keep: active
stopped: success
with it: gpushim-refresh-keep.service
"""


@pytest.fixture
def machine() -> Iterator[Path]:
    """A host after a boot, with a module missing, and what systemd is to start."""
    with tempfile.TemporaryDirectory(prefix="plugin") as name:  # a path short enough for sockets
        top = Path(name)
        host = fakehost.build(str(top / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        host.unload("nvidia_uvm")
        (top / "config.toml").write_text(f'[driver]\nroot = "{host.root}"\n' + SETTINGS.format(top))
        (top / "plugin.yaml").write_text(PROFILES)
        for folder in ("bin", *(f"units/{unit}.d" for unit in (NAME, KEEP, MPS)), "kubelet/device-plugins"):
            (top / folder).mkdir(parents=True)
        for program in ("gpushim", "gpushim-device-plugin"):
            (top / "bin" / program).symlink_to(trees.TOP / "bin" / program)
        for unit in (NAME, KEEP, MPS):
            (top / f"units/{unit}.d/test.conf").write_text(DROP_IN)
            shutil.copy(UNITS / unit, top / "units")
        (top / "units/try.target").write_text(TARGET)
        (top / "units/try.service").write_text(SERVICE)
        (top / "try.sh").write_text(TRY.replace("ROOT", host.root).replace("FEATURES", FEATURES))
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
