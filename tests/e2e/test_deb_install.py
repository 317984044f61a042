"""The Debian packages installed by apt: containers get their GPUs from the installed files, and all of it goes again.

On the machine that runs the tests (Debian 12) and on trixie. Out of scope: sid, whose Python, engines and runtimes
serve the same files in test_chroot_*.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, packages
from e2e.expect import INSIDE, PROBE, probe, sees_exactly, sees_nothing
from e2e.installed import Machine
from e2e.packages import COMPAT, MAIN, PLUGIN

# As NVIDIA's documentation has it, and beside it our own name.
DAEMON = {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}, "ours": {"path": "/usr/bin/gpushim-runtime"}}}
RUN = f"docker run --rm --network=none --volume={PROBE}:{INSIDE}:ro"
IMAGE = "debian:local"
SUITES = (packages.HERE, "trixie")
# The device plugin, until it listens for kubelet; the argument is kubelet's directory.
SERVE = """
set -- %s
mkdir -p "$1/device-plugins"
gpushim-device-plugin --kubelet-dir="$1" 2>"$1/said" &
for try in $(seq 100); do [ ! -S "$1/device-plugins/gpushim-gpu.sock" ] || break; sleep 0.1; done
ls "$1/device-plugins"
kill $!
wait $!
echo "ended with $?"
ls "$1/device-plugins"
cat "$1/said" >&2
"""
FOREIGN = '{"cdiVersion": "0.5.0", "kind": "example.org/gpu", "devices": [], "containerEdits": {}}'


@pytest.fixture(scope="module", params=SUITES)
def there(request: pytest.FixtureRequest, debian_tree: Path, debian_image: Path) -> Iterator[Machine]:
    """A machine with all packages and a dockerd whose settings were there before."""
    with packages.machine(request.param, debian_tree) as there:
        there.write("/etc/docker/daemon.json", json.dumps(DAEMON))
        packages.install(there, *built.packages("deb").values())
        packages.settle(there)
        there.restart("docker")
        there.run(f"docker load --input={debian_image}")
        yield there
        there.run("docker ps --all --quiet | xargs --no-run-if-empty docker rm --force")


def docker(there: Machine, options: str, indices: list[int]) -> str:
    return there.run(f"{RUN} {options} {IMAGE} {' '.join(probe(there.host, indices))}").stdout


def test_runc_gives_the_gpus_asked_for(there: Machine) -> None:
    report = packages.bundle(there).look(there.host, [0, 2], "NVIDIA_VISIBLE_DEVICES=0,2")
    sees_exactly(report, there.host, [0, 2])


def test_runc_gives_no_gpu_without_a_request(there: Machine) -> None:
    sees_nothing(packages.bundle(there).look(there.host, []))


@pytest.mark.parametrize("runtime", ["ours", "nvidia"])
def test_docker_gives_the_gpus_asked_for(there: Machine, runtime: str) -> None:
    """With `nvidia` by settings that name nvidia-container-runtime, and that nobody has changed."""
    said = docker(there, f"--runtime={runtime} --env=NVIDIA_VISIBLE_DEVICES=1", [1])
    sees_exactly(said, there.host, [1])
    assert json.loads(there.run("cat /etc/docker/daemon.json").stdout) == DAEMON


def test_docker_gives_gpus_without_any_configuration(there: Machine) -> None:
    sees_exactly(docker(there, "--gpus=all", [0, 1, 2]), there.host, [0, 1, 2])


def test_everything_is_compiled(there: Machine) -> None:
    """Nothing writes bytecode later."""
    script = "ls ${file%/*}/__pycache__/$(basename $file .py).*"
    script = f'for file in $(find /usr/lib/gpushim -name "*.py"); do {script}; done'
    assert "No such file" not in there.run(f"{script} 2>&1 >/dev/null", check=False).stdout


def test_refresh_starts_by_itself(there: Machine) -> None:
    names = ("paths.target.wants/gpushim-refresh.path", "paths.target.wants/gpushim-refresh-cdi.path")
    more = ("timers.target.wants/gpushim-refresh.timer", "sockets.target.wants/gpushim-refresh.socket")
    boot = "multi-user.target.wants/gpushim-refresh-boot.service"
    for name in (*names, *more, boot):
        wanted = there.run(f"readlink /etc/systemd/system/{name}").stdout
        assert wanted.endswith(f"/systemd/system/{name.partition('/')[2]}\n")


def test_the_device_plugin_offers_gpus_by_the_distribution_s_grpc(there: Machine) -> None:
    assert "nvidia.com/gpu: 3 of 3 can be given out" in there.run("gpushim-device-plugin --check").stdout
    done = there.run(SERVE % (there.state / "kubelet"))
    assert done.stdout == "gpushim-gpu.sock\nended with 0\n", done.stderr


def test_its_service_is_started_at_boot_and_systemd_understands_it(there: Machine) -> None:
    name = "gpushim-device-plugin.service"
    wanted = there.run(f"readlink /etc/systemd/system/multi-user.target.wants/{name}").stdout
    assert wanted.endswith(f"/systemd/system/{name}\n")
    claiming = "gpushim-dra-driver-cluster.service"  # which that one starts
    assert there.run("find /etc/systemd/system -name 'gpushim-dra-driver*'").stdout == ""
    for unit in (name, claiming) if there.run("command -v systemd-analyze", check=False).stdout else ():
        assert there.run(f"systemd-analyze verify --man=no /usr/lib/systemd/system/{unit} 2>&1").stdout == ""


def test_cdi_spec_is_where_engines_look(there: Machine) -> None:
    there.run("gpushim refresh")
    assert json.loads(there.run("cat /var/run/cdi/nvidia.com-gpu.json").stdout)["kind"] == "nvidia.com/gpu"


def test_nothing_is_left(debian_tree: Path) -> None:
    """Of installing, of containers, and of configuring an engine; test_quick_start.py has trixie, and asks first."""
    with packages.machine(packages.HERE, debian_tree) as there:
        there.write("/var/run/cdi/example.json", FOREIGN)
        there.run("apt-get autoremove --yes --purge")  # or the removal below would take what nobody needs before
        before = packages.files(there)
        chosen = (MAIN, COMPAT, PLUGIN)
        packages.install(there, *(built.packages("deb")[name] for name in chosen))
        packages.settle(there)
        there.run("gpushim refresh && gpushim configure docker && gpushim configure podman --hooks")
        packages.bundle(there).look(there.host, [1], "NVIDIA_VISIBLE_DEVICES=1")
        assert packages.traces(there, before)
        there.run(f"GPUSHIM_UNCONFIGURE=1 apt-get purge --yes --auto-remove {' '.join(chosen)}")
        assert packages.removal_traces(there, before) == []
