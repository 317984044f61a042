"""The units and the udev rule of packaging/systemd: a real systemd runs them, a real udev reads the rule.

systemd is the first process of namespaces of its own, as in test_systemd_reload.py; /etc and /usr/bin are overlays
there, so that the units are tried as they are, but for a drop-in that names the simulated host.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e import trees
from e2e.trymachine import BOOT, NAMES, SERVICES, UNITS, tried
from e2e.trymachine import machine as machine
from gpushim.ground.errors import CONFIG, DRIVER, NOT_EXECUTABLE, NOT_FOUND

RULES = UNITS / "60-gpushim.rules"
SAID = """waiting: 0 success
configuration: 1 success
loaded:
loaded: nvidia_uvm nvidia_modeset
spec: 2 success
again: 3 success
libraries: 4 success
broken: 5 exit-code
fixed: 6 success
nvidia.com-gpu.json theirs: 7 success
nvidia.yaml ours: 8 success
nvidia.com-gpu.json wanted: 9 success
listed
more starts than systemd allows by itself
active
active
"""


def test_every_change_starts_the_service_once(machine: Path) -> None:
    code, said, why = tried(machine)
    assert (code, said) == (0, SAID), why


@pytest.mark.parametrize("name", NAMES)
def test_units_are_what_systemd_understands(tmp_path: Path, name: str) -> None:
    for unit in NAMES:
        text = (UNITS / unit).read_text().replace("/usr/bin/gpushim", str(trees.TOP / "bin/gpushim"))
        (tmp_path / unit).write_text(text)
    done = subprocess.run(
        ["/usr/bin/systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_service_that_no_timer_starts_starts_again_where_waiting_may_help() -> None:
    text, again, asked = ((UNITS / name).read_text() for name in SERVICES)
    assert f"RestartPreventExitStatus={DRIVER} {CONFIG} {NOT_EXECUTABLE} {NOT_FOUND}\n" in text
    assert "Restart=" not in again + asked
    assert "StartLimitIntervalSec=0\n" in text
    assert "StartLimitIntervalSec=0\n" in again
    assert "StartLimitIntervalSec=0\n" in asked


@pytest.mark.parametrize("name", [*SERVICES, BOOT])
def test_the_services_are_hardened(name: str) -> None:
    command = ["/usr/bin/systemd-analyze", "security", "--offline=yes", "--threshold=65", str(UNITS / name)]
    assert subprocess.run(command, capture_output=True).returncode == 0


def seen_by_udev(module: str) -> str:
    """Return what udev makes of a module of this kernel, which stands for NVIDIA's."""
    script = (
        "mount -t tmpfs tmpfs /run; mkdir -p /run/udev/rules.d; "
        'sed "s/KERNEL==\\"nvidia|/KERNEL==\\"printk|/" "$0" >/run/udev/rules.d/60-gpushim.rules; '
        'udevadm test --action="$1" "/sys/module/$2" 2>&1'
    )
    words = ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", script, str(RULES)]
    action, _, name = module.partition(" ")
    return subprocess.run([*words, action, name], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("module", "wants"),
    [("add printk", True), ("change printk", True), ("remove printk", False), ("add kernel", False)],
)
def test_the_drivers_appearance_starts_the_service(module: str, wants: bool) -> None:
    said = seen_by_udev(module)
    assert "60-gpushim.rules:" not in said  # which is how udev complains about a line
    assert ("SYSTEMD_WANTS=gpushim-refresh.service" in said and "TAGS=:systemd:" in said) is wants


AGAIN = """
service=gpushim-refresh.service
mkdir -p /run/systemd/system/$service.d
printf '[Service]\\nRestartSec=1\\n' >/run/systemd/system/$service.d/soon.conf
systemctl daemon-reload
echo fail = 999 >>ROOT/etc/fakehost.conf
systemctl start $service 2>/dev/null || echo failed
sed -i '/^fail = 999/d' ROOT/etc/fakehost.conf
for try in $(seq 200); do grep -q '"source":"nvml"' /run/gpushim/inventory.json && break; sleep 0.1; done
grep -o '"source":"[a-z]*"' /run/gpushim/inventory.json
"""


def test_what_failed_in_passing_is_looked_at_again(machine: Path) -> None:
    (machine / "try.sh").write_text(AGAIN.replace("ROOT", f"{machine}/host"))
    _, said, why = tried(machine)
    assert said == 'failed\n"source":"nvml"\n', why


# The host here is simulated: its driver is not where the unit looks. The engine notes what it finds at its start.
STARTS = f"""
cd /run/systemd/system
mkdir -p {BOOT}.d
printf '[Service]\\nExecCondition=\\nTimeoutStartSec=SECONDS\\nTimeoutStopSec=1\\n' >{BOOT}.d/here.conf
printf '[Unit]\\nDefaultDependencies=no\\n[Service]\\nType=oneshot\\nExecStart=/mnt/engine\\n' >docker.service
printf '#!/bin/sh\\nls /run/cdi >/mnt/seen 2>&1 || true\\n' >/mnt/engine
chmod +x /mnt/engine
systemctl daemon-reload
echo hang = HANGS >>ROOT/etc/fakehost.conf
systemctl start --no-block {BOOT}
systemctl start docker.service
cat /mnt/seen
systemctl show {BOOT} --property=Result --value
"""


@pytest.mark.parametrize(
    ("hangs", "seconds", "said"),
    [
        (0, 90, "nvidia.com-gpu.json\nsuccess\n"),
        (1, 6, "ls: cannot access '/run/cdi': No such file or directory\ntimeout\n"),
    ],
    ids=["the driver is there", "it hangs"],
)
def test_an_engine_starts_after_the_list_and_waits_no_longer_than_that_may_take(
    machine: Path, hangs: int, seconds: int, said: str
) -> None:
    script = STARTS.replace("SECONDS", str(seconds)).replace("HANGS", str(hangs))
    (machine / "try.sh").write_text(script.replace("ROOT", f"{machine}/host"))
    _, found, why = tried(machine)
    assert found == said, why


def test_an_engine_is_held_up_for_less_than_two_minutes() -> None:
    text = (UNITS / BOOT).read_text()
    assert {"TimeoutStartSec=90s", "TimeoutStopSec=5s", "Type=oneshot"} <= {*text.splitlines()}
