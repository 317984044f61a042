"""A container whose engine calls only the hook keeps its GPUs when systemd applies its own rules again.

systemd itself runs as the first process of namespaces of its own, on read-only file systems and in a part of
the cgroup v2 tree, where it attaches device programs for real. It needs no machine and stops within seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e import trees
from e2e.cgroupunits import OUTER, SERVICE, TARGET

INNER = """
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
umount /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount --bind $1 /mnt
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system
cp /mnt/*.target /mnt/*.service /run/systemd/system
mount -o remount,bind,ro /
mount -o remount,bind,ro /dev
mount -o remount,bind,ro /proc/sys
container=test exec /lib/systemd/systemd --system --unit=try.target --log-target=console --show-status=0
"""
TRY = """
create() { runc --root /run/runc --systemd-cgroup create --bundle /mnt --pid-file /run/pid one; }
create </dev/null >/mnt/container 2>&1
sources="import sys; sys.path[:0] = ['TOP/hook', 'TOP/shim']"
sources="$sources; from gpuhook.inject import devices; from gpushim.paths import mountinfo"
python3 -IBSc "$sources; devices.allow(mountinfo.held($(cat /run/pid)), [(195, 0)], print)"
runc --root /run/runc start one
opens() { echo $1 $(runc --root /run/runc exec one /bin/sh -c 'for i in 0 1; do head -c1 /dev/nv$i; done' 2>&1); }
opens start
systemctl daemon-reload
sleep 0.5
opens reload
systemctl set-property --runtime gpushim-one.scope TasksMax=100
sleep 0.5
opens change
systemctl show gpushim-one.scope --property DeviceAllow | grep -c 195
runc --root /run/runc delete --force one
"""
ANSWER = "head: /dev/nv0: No such device or address head: /dev/nv1: Operation not permitted"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A container with two nodes and no rule for them, and what systemd is to start."""
    programs = tmp_path / "rootfs/bin"
    programs.mkdir(parents=True)
    shutil.copy2("/bin/busybox", programs)
    for name in ("sh", "head", "sleep"):
        (programs / name).symlink_to("busybox")
    subprocess.run(["/usr/sbin/runc", "spec"], cwd=tmp_path, check=True)
    spec = json.loads((tmp_path / "config.json").read_text())
    spec["process"] |= {"terminal": False, "args": ["/bin/sleep", "60"]}
    nodes = [{"path": f"/dev/nv{minor}", "type": "c", "major": 195, "minor": minor} for minor in (0, 1)]
    spec["linux"] |= {"cgroupsPath": "system.slice:gpushim:one", "devices": nodes}
    (tmp_path / "config.json").write_text(json.dumps(spec))
    (tmp_path / "try.sh").write_text(TRY.replace("TOP", str(trees.TOP)))
    (tmp_path / "try.target").write_text(TARGET)
    (tmp_path / "try.service").write_text(SERVICE)
    return tmp_path


def test_reload_and_change(bundle: Path) -> None:
    words = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", OUTER, "sh"]
    done = subprocess.run(
        [*words, str(bundle), f"gpushim-{bundle.stat().st_ino}", INNER],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = (bundle / "said").read_text() if (bundle / "said").exists() else ""
    trouble = done.stdout + done.stderr + (bundle / "errors").read_text() if said else done.stderr
    assert said == f"start {ANSWER}\nreload {ANSWER}\nchange {ANSWER}\n1\n", trouble
    assert done.returncode == 0
