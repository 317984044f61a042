"""Creates with the limits of a tenant, and a real systemd that lists the GPUs for them (gpushim-refresh.socket).

The limits are cgroups of version 1 or 2, wherever this kernel has the controllers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e import trees
from e2e.trymachine import machine, tried

__all__ = ["machine"]
ASKED = "gpushim-refresh-asked.service"
BUNDLE = {
    "ociVersion": "1.0.2",
    "process": {"args": ["/bin/true"], "cwd": "/", "env": ["NVIDIA_VISIBLE_DEVICES=all"]},
    "root": {"path": "rootfs"},
    "linux": {"resources": {}},
}
CREATES = """
asked=gpushim-refresh-asked.service
: >/mnt/starts
create() { cp -r /mnt/bundle /run/$1 && exec TOP/bin/gpushim-runtime create --bundle /run/$1 $1; }
# limited NAME CONTROLLER FILE VALUE...: create it under a limit, in whichever hierarchy has the controller
limited() {
  name=$1 controller=$2 place=/run/limits/$2
  shift 2
  mkdir -p $place
  mount -t cgroup -o $controller none $place 2>/dev/null || { mount -t cgroup2 none $place; controller=v2; }
  [ $controller != v2 ] || echo +${place##*/} >$place/cgroup.subtree_control
  mkdir -p $place/tenant
  while [ $# -gt 1 ]; do [ ! -e $place/tenant/$1 ] || echo "$2" >$place/tenant/$1; shift 2; done
  (echo $(exec sh -c 'echo $PPID') >$place/tenant/cgroup.procs; create $name)
}
slow() { limited $1 cpu cpu.cfs_quota_us 1000 cpu.max '1000 100000'; }
began() { grep -c ^$asked /mnt/starts || true; }
until_() { for try in $(seq 300); do ! eval "$1" || return 0; sleep 0.1; done; echo "never: $1"; }
gone() { rm -f /run/gpushim/inventory.json; }
systemctl start gpushim-refresh.socket
"""
SLOW = """
slow first >/mnt/first 2>&1 &
until_ '[ $(began) -gt 0 ]'
(create second) && echo second created
kill -9 $(cat /run/limits/cpu/tenant/cgroup.procs)
"""
SLOW_WITHOUT = """
systemctl stop gpushim-refresh.socket
slow first >/mnt/first 2>&1 &
until_ 'test -s /run/gpushim/lock || grep -qs -- --locked /proc/[0-9]*/cmdline'
(create second) && echo second created
kill -9 $(cat /run/limits/cpu/tenant/cgroup.procs)
"""
FEW = """
limited first pids pids.max 2 2>&1 && echo first created
gone
(create second) && echo second created
echo $(began)
"""
FEW_WITHOUT = """
systemctl stop gpushim-refresh.socket
limited first pids pids.max 2 2>&1 && echo first created
(create second) && echo second created
"""
NO_SERVICE = """
mv /run/systemd/system/$asked /run/kept
ln -s /dev/null /run/systemd/system/$asked
systemctl daemon-reload
(create first) && echo first created
gone
mv /run/kept /run/systemd/system/$asked
systemctl daemon-reload
systemctl stop gpushim-refresh.socket
(create second) && echo second created
echo $(began)
"""
STOPPED = """
systemctl stop gpushim-refresh.socket
TOP/bin/gpushim doctor >/run/doctor || true
grep -o '[^ ]* is installed, and [^ ]* is not there' /run/doctor
eval "$(grep -om1 'systemctl enable gpushim-refresh.socket && .*' /run/doctor)"
TOP/bin/gpushim doctor --all | grep -o 'gpushim-refresh.service is installed'
(create first) && echo first created
echo $(began)
"""
SAID = {
    SLOW: "second created\n",
    SLOW_WITHOUT: "second created\n",
    FEW: "first created\nsecond created\n2\n",
    FEW_WITHOUT: "first created\nsecond created\n",  # root's refresh leaves the tenant's cgroups
    NO_SERVICE: "first created\nsecond created\n0\n",
    STOPPED: "gpushim-refresh.socket is installed, and /run/gpushim/refresh.sock is not there\n"
    "gpushim-refresh.service is installed\nfirst created\n1\n",
}
NAMES = (
    "slow",
    "slow without the service",
    "few processes",
    "few processes without the service",
    "masked units",
    "doctor's fix",
)


@pytest.mark.parametrize("script", SAID, ids=NAMES)
def test_a_tenant_that_has_little(machine: Path, script: str) -> None:
    config = machine / "config.toml"
    config.write_text(config.read_text() + '[runtime]\nlow-level = ["/bin/true"]\n[refresh]\ndeadline-seconds = 3\n')
    (machine / "bundle/rootfs").mkdir(parents=True)
    (machine / "bundle/config.json").write_text(json.dumps(BUNDLE))
    (machine / "try.sh").write_text((CREATES + script).replace("TOP", str(trees.TOP)))
    _, said, why = tried(machine)
    assert said == SAID[script], why
