"""A machine on which systemd starts units, and what they did."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.cgroupunits import OUTER, SERVICE, TARGET

UNITS = trees.TOP / "packaging" / "systemd"
SERVICES = ("gpushim-refresh.service", "gpushim-refresh-again.service", "gpushim-refresh-asked.service")
BOOT = "gpushim-refresh-boot.service"
WATCHING = ("gpushim-refresh.path", "gpushim-refresh-cdi.path", "gpushim-refresh.timer", "gpushim-refresh.socket")
NAMES = (*SERVICES, BOOT, *WATCHING)
INNER = """
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
umount /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount --bind $1 $1
mount --bind $1 /mnt
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/lib
mkdir -p /run/systemd/system /run/etc/upper/gpushim /run/etc/work
cp -r /mnt/units/* /run/systemd/system
cp /mnt/config.toml /run/etc/upper/gpushim
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
mount -t overlay -o lowerdir=/mnt/bin:/usr/bin overlay /usr/bin
mount -o remount,bind,ro /
mount -o remount,bind,ro /dev
mount -o remount,bind,ro /proc/sys
container=test exec /lib/systemd/systemd --system --unit=try.target --log-target=console --show-status=0
"""
ALONE = "[Unit]\nDefaultDependencies=no\n"
DROP_IN = """[Unit]
DefaultDependencies=no
ConditionPathExists=|{root}/proc/driver/nvidia/version
[Service]
ExecStartPre=/bin/sh -c 'echo %n >>/mnt/starts'
StandardOutput=append:/mnt/log
StandardError=append:/mnt/log
"""
TRY = """
again=gpushim-refresh-again.service
: >/mnt/starts
began() { grep -c ^$again /mnt/starts || true; }
starts() {
  for try in $(seq 100); do [ $(began) -lt $1 ] || break; sleep 0.1; done
  while [ $(systemctl is-active $again) = activating ]; do sleep 0.1; done
  while systemctl list-jobs | grep -q $again; do sleep 0.1; done # one start too many shows in the next count too
  echo $2: $(began) $(systemctl show $again --property Result --value)
}
facts() { find /run/cdi /var/lib/gpushim ROOT/dev -printf '%p %i %C@\\n' | sort; }
ldconfig() { cp /etc/ld.so.cache /etc/ld.so.cache~ && mv /etc/ld.so.cache~ /etc/ld.so.cache; }
there() { ls /run/cdi | tr '\n' ' '; }
modules() { cat ROOT/usr/lib/fakehost/modprobe.log 2>/dev/null | tr '\n' ' '; }
systemctl start gpushim-refresh.path gpushim-refresh-cdi.path
starts 0 waiting
echo '# changed' >>/etc/gpushim/config.toml
starts 1 configuration
echo loaded: $(modules)
systemctl start gpushim-refresh.service
echo loaded: $(modules)
test -c ROOT/dev/nvidia-uvm && test -L ROOT/dev/char/508:0
starts 2 spec
facts >/mnt/before
systemctl start $again
starts 3 again
facts | cmp /mnt/before -
ldconfig
starts 4 libraries
echo '[' >>/etc/gpushim/config.toml
starts 5 broken
sed -i '/^.$/d' /etc/gpushim/config.toml
starts 6 fixed
there
sed 's/gpushim-hook/other-hook/' /run/cdi/nvidia.com-gpu.json >/run/cdi/nvidia.yaml
starts 7 theirs
there
rm /run/cdi/nvidia.yaml
starts 8 ours
there
mkdir /run/gpushim/device-plugin
echo '{"refresh": true}' >/run/gpushim/device-plugin/wanted
starts 9 wanted
[ /run/gpushim/device-plugin/wanted -nt /run/gpushim/inventory.json ] || echo listed
for try in $(seq 600); do [ $(began) -lt 20 ] || break; ldconfig; sleep 0.05; done
[ $(began) -lt 20 ] || echo more starts than systemd allows by itself
systemctl is-active gpushim-refresh.path gpushim-refresh-cdi.path
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A host after a boot, with two modules missing, and what systemd is to start."""
    host = fakehost.build(str(tmp_path / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    host.unload("nvidia_uvm", "nvidia_modeset")
    (tmp_path / "config.toml").write_text(f'[driver]\nroot = "{host.root}"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gpushim").symlink_to(trees.TOP / "bin/gpushim")
    units = tmp_path / "units"
    for name in NAMES:
        drop_in = DROP_IN.format(root=host.root) if name in (*SERVICES, BOOT) else ALONE
        (units / f"{name}.d").mkdir(parents=True)
        (units / f"{name}.d/test.conf").write_text(drop_in)
        shutil.copy(UNITS / name, units)
    (units / "try.target").write_text(TARGET)
    (units / "try.service").write_text(SERVICE.replace("=60", "=170"))
    (tmp_path / "try.sh").write_text(TRY.replace("ROOT", host.root))
    return tmp_path


def tried(machine: Path) -> tuple[int, str, str]:
    """Run try.sh in the machine; return the exit code, what it said, and all that may explain it."""
    words = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", OUTER, "sh"]
    words += [str(machine), f"gpushim-{machine.stat().st_ino}", INNER]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    said, errors, log = (_text(machine / name) for name in ("said", "errors", "log"))
    return done.returncode, said, done.stdout + done.stderr + errors + log


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
