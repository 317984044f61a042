"""The units that serve claims, confined by a real systemd: of two halves one is not root, and knows what root reads.

The machine is that of test_refresh_service.py. Out of scope: kubelet, and an API server (test_dra_kubeconfig.py).
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

NODE, CLUSTER, KEEP = (
    "gpushim-device-plugin.service",
    "gpushim-dra-driver-cluster.service",
    "gpushim-refresh-keep.service",
)
USERS = "gpushim-dra-driver.conf"
DROP_IN = """[Unit]
DefaultDependencies=no
[Service]
StandardError=append:/mnt/log
"""
TRY = """
wait_for() { for try in $(seq 150); do ! eval "$1" || return 0; sleep 0.1; done; echo never: "$1"; }
pid() { systemctl show $1 --property MainPID --value; }
connect='import socket
one = socket.socket(socket.AF_UNIX)
one.settimeout(20)
one.connect("/run/gpushim-dra/cluster.sock")
print(one.makefile("rb").read())'
told() { grep -c 'kubeconfig cannot be used' /mnt/log || true; }
mkdir -p /etc/sysusers.d && cp /mnt/units/USERS /etc/sysusers.d
systemctl start NODE
wait_for '[ $(told) = 1 ]' && echo told
stat -c '%U %G %a' /run/gpushim-dra /run/gpushim-dra/cluster.sock
as() { setpriv --reuid $1 --regid $2 --clear-groups python3 -c "$connect" 2>&1 | tail -1; }
echo its number: $(as gpushim-dra gpushim-dra) $(as root root) $(systemctl is-active CLUSTER)
echo another: $(as nobody gpushim-dra) $(as nobody nogroup)
grep -c 'is not of CLUSTER connects' /mnt/log
stat -c %U /proc/$(pid NODE) /proc/$(pid CLUSTER)
echo keep: $(systemctl is-active KEEP)
before=$(pid NODE)
systemctl kill --signal=KILL NODE
wait_for '[ $(pid NODE) != 0 ] && [ $(pid NODE) != $before ]'
wait_for '[ $(told) -gt 1 ]' && echo again: $(systemctl is-active NODE CLUSTER)
before=$(pid CLUSTER)
systemctl kill --signal=KILL CLUSTER
wait_for '[ $(pid CLUSTER) != 0 ] && [ $(pid CLUSTER) != $before ]' && echo the other: $(systemctl is-active NODE)
systemctl reload NODE
wait_for 'grep -q "settings were read again" /mnt/log' && echo read again
before=$(pid NODE)
sed -i 's/"device-plugin", "dra"/"device-plugin"/' /etc/gpushim/config.toml
wait_for '[ $(pid NODE) != 0 ] && [ $(pid NODE) != $before ]'
wait_for '! systemctl is-active --quiet CLUSTER' && wait_for 'systemctl is-active --quiet NODE'
echo without claims: $(systemctl is-active NODE)
systemctl stop NODE
wait_for '! systemctl is-active --quiet KEEP' && wait_for '! systemctl is-active --quiet CLUSTER'
echo stopped: $(systemctl show NODE --property Result --value) $(ls -d /run/gpushim-dra 2>/dev/null)
"""
SAID = """told
root gpushim-dra 750
root root 666
its number: b'' b'' active
another: b'' PermissionError: [Errno 13] Permission denied
1
root
gpushim-dra
keep: active
again: active active
the other: active
read again
without claims: active
stopped: success
"""
KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://localhost", "certificate-authority": "ca"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.fixture
def machine() -> Iterator[Path]:
    """A host after a boot, whose kubeconfig root alone can read; its certificate is none."""
    with tempfile.TemporaryDirectory(prefix="dra") as name:
        top = Path(name)
        top.chmod(0o755)
        host = fakehost.build(str(top / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        config = f'[driver]\nroot = "{host.root}"\n[device-plugin]\nkubeconfig = "{top}/secret/kubeconfig"\n'
        config += f'kubelet-dir = "{top}/kubelet"\nfronts = ["device-plugin", "dra"]\n'
        (top / "config.toml").write_text(config)
        kubelet = ("kubelet/plugins_registry", "kubelet/device-plugins")
        for folder in ("bin", *(f"units/{unit}.d" for unit in (NODE, CLUSTER, KEEP)), *kubelet):
            (top / folder).mkdir(parents=True)
        (top / "secret").mkdir(mode=0o700)
        for file, text in (("kubeconfig", json.dumps(KUBECONFIG)), ("ca", "none")):
            (top / "secret" / file).write_text(text)
            (top / "secret" / file).chmod(0o600)
        for program in ("gpushim", "gpushim-device-plugin"):
            (top / "bin" / program).symlink_to(trees.TOP / "bin" / program)
        for unit in (NODE, CLUSTER, KEEP):
            (top / f"units/{unit}.d/test.conf").write_text(DROP_IN)
        for file in (NODE, CLUSTER, KEEP, USERS):
            shutil.copy(UNITS / file, top / "units")
        (top / "units/try.target").write_text(TARGET)
        (top / "units/try.service").write_text(SERVICE.replace("=60", "=170"))
        words = {"NODE": NODE, "CLUSTER": CLUSTER, "KEEP": KEEP, "USERS": USERS}
        text = TRY
        for word, unit in words.items():
            text = text.replace(word, unit)
        (top / "try.sh").write_text(text)
        yield top


def test_both_halves_serve_as_they_are_confined(machine: Path) -> None:
    code, said, why = tried(machine)
    assert (code, said) == (0, SAID), why
