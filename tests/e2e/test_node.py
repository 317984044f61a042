"""gpushim-node on a node: its files, the engine, upgrade and removal."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import cri, node, recorder, restarts, trees
from e2e.creates import CREATES, beside
from e2e.manifests import by_variable, pod
from e2e.node import Node
from gpushim import __version__
from gpushim.inventory import ensure

SUITE = "trixie"
OLD = "0.0.9"
LEFT = ["/usr/bin/gpushim-hook", "/usr/bin/gpushim-runtime"]  # by a removal, for containers that run
INVENTORY = f"/run/gpushim/{ensure.SNAPSHOT}"
UNIT = "/sys/fs/cgroup/systemd/system.slice/containerd.service"
# In systemd's place: of its services there is containerd alone.
SYSTEMCTL = f"""{restarts.LINES}
print(*sys.argv[1:], file=open("/run/asked", "a"))
if sys.argv[1] == "restart":
    end()
    begin(["/usr/bin/containerd"], "{UNIT}", ["/usr/bin/ctr", "version"])
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node.payload(tmp_path_factory.mktemp("older"), OLD)


@pytest.fixture
def there() -> Iterator[Node]:
    with node.node(SUITE) as there:
        yield there


@contextlib.contextmanager
def systemd(there: Node, systemctl: str = SYSTEMCTL) -> Iterator[None]:
    """Let the node's containerd be a service of systemd's, by what shows it, which `systemctl restart` restarts."""
    there.write("/usr/bin/systemctl", systemctl)
    there.run(f"chmod 755 /usr/bin/systemctl; mkdir -p /run/systemd/system {UNIT}")
    there.run(f"{containerd_pid(there)} && echo $pid >{UNIT}/cgroup.procs")
    try:
        yield
    finally:
        there.run(
            f"cat {UNIT}/cgroup.procs >{UNIT}/../../cgroup.procs; rmdir {UNIT} /run/systemd/system /run/systemd"
        )
        there.run("rm -f /usr/bin/systemctl /run/asked")


def containerd_pid(there: Node) -> str:
    return "pid=$(grep -lx containerd /proc/[0-9]*/comm | head -n 1 | cut -d / -f 3)"


def settled(there: Node) -> dict[str, str]:
    """The node's files without the list of GPUs, which is a new one each time."""
    return {
        path: facts for path, facts in there.files().items() if not path.startswith(("/run/gpushim", "/run/asked"))
    }


def test_install_configures_and_restarts_the_engine_once(
    there: Node, payload: Path, debian_image: Path, busybox_tree: Path
) -> None:
    """A second run is a no-op, byte for byte; uninstalling leaves the node as it was."""
    before = there.files()
    with systemd(there):
        done = there.call("install", "--restart", payload=payload)
        assert f"gpushim {__version__} is installed" in done.stdout
        assert "verified: containerd has the runtime nvidia" in done.stdout
        assert "restart containerd.service" in there.run("cat /run/asked").stdout
        for archive in (debian_image, trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])):
            there.containerd.load(archive)
        sees_its_gpu(there)
        first = settled(there)
        there.run("rm /run/asked")
        again = there.call("install", "--restart", payload=payload)
        assert f"gpushim {__version__} was installed already" in again.stdout
        assert settled(there) == first
        assert there.run("cat /run/asked", check=False).stdout == ""
        assert "is removed" in there.call("uninstall", "--restart", payload=payload).stdout
    there.run(f"rm -r {' '.join(LEFT)} /etc/tmpfiles.d /run/gpushim-removed")
    assert there.files() == before


def test_an_engine_that_no_restart_helps_is_restarted_once(there: Node, payload: Path) -> None:
    """The container that installs is run again and again; what stands in the way is the node's to mend."""
    with systemd(there, SYSTEMCTL.replace('"restart"', '"never"')):
        failed = [there.call("install", "--restart", payload=payload, check=False) for _ in range(2)]
        assert all(done.returncode for done in failed)
        assert "was restarted once for this and is not restarted again" in failed[-1].stderr
        assert there.run("grep -c ^restart /run/asked").stdout == "1\n"
        there.restart("containerd")
        there.run(f"{containerd_pid(there)} && echo $pid >{UNIT}/cgroup.procs")
        there.call("install", "--restart", payload=payload)
        assert there.run("grep -c ^restart /run/asked").stdout == "1\n"
    assert "verified: containerd has the runtime nvidia" in there.run("gpushim configure containerd --verify").stdout


def sees_its_gpu(there: Node) -> None:
    uuid = there.host.gpus[1].uuid
    output = pod(there, "nvidia", by_variable(uuid), ["nvidia-smi", "-L"])
    assert re.findall(r"GPU-[0-9a-f-]+", output) == [uuid]


@pytest.fixture
def standing(there: Node, payload: Path) -> Node:
    """A node with gpushim, whose engine has been restarted."""
    there.call("install", payload=payload)
    there.restart("containerd")
    return there


def test_containers_that_run_go_on_when_it_is_taken_away(
    standing: Node, payload: Path, debian_image: Path, busybox_tree: Path
) -> None:
    """A script stays for them, which no moment misses and an installation replaces."""
    for archive in (debian_image, trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])):
        standing.containerd.load(archive)
    with standing.containerd.cri() as client:
        pod = client.run_pod("nvidia")
        container = client.create(pod, "docker.io/library/debian:local", ["sleep", "1000"])
        client.start(container)
        with calling(standing):
            done = standing.call("uninstall", payload=payload)
        assert ("stay for containers that run" in done.stdout, "is removed" in done.stdout) == (True, True)
        assert standing.run("ls /usr/bin/gpushim*").stdout.split() == LEFT
        assert client.execute(container, "echo", "here") == "here\n"
        asks = client.create(pod, "docker.io/library/debian:local", ["true"], env={"NVIDIA_VISIBLE_DEVICES": "0"})
        with pytest.raises(cri.RefusedError, match="removed, and this container may ask for a GPU"):
            client.start(asks)
        assert "gpushim-node has installed nothing" in standing.call("uninstall", payload=payload).stdout
        standing.call("install", payload=payload)
        assert standing.run("gpushim --version; ls /etc/tmpfiles.d /run/gpushim-removed", check=False).stdout == (
            f"gpushim {__version__}\n/etc/tmpfiles.d:\n"
        )
        standing.call("uninstall", payload=payload)
        assert client.execute(container, "echo", "here") == "here\n"


@contextlib.contextmanager
def calling(there: Node) -> Iterator[None]:
    """Call the runtime all the while, as engines do; none of the calls misses it."""
    script = "while [ ! -e /run/end ]; do gpushim-runtime --version >/dev/null; done; rm /run/end"
    with subprocess.Popen([*there.prefix, "/bin/sh", "-euc", script], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield
        finally:
            there.run("touch /run/end")
            _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


def test_what_others_have_changed_stays(there: Node, payload: Path) -> None:
    there.call("install", "--engine=none", payload=payload)
    there.run("echo '# mine' >>/etc/gpushim/config.toml; echo mine >/usr/lib/gpushim/mine")
    there.run("echo mine >/usr/share/bash-completion/completions/gpushim")
    there.run("mkdir /etc/features.d; touch /etc/features.d/gpushim /etc/features.d/other")
    done = there.call("uninstall", "--labels-directory=/etc/features.d", payload=payload)
    assert there.run("ls /etc/features.d").stdout == "other\n"
    assert "/usr/share/bash-completion/completions/gpushim was changed and is kept" in done.stderr
    assert there.run("tail -n 1 /etc/gpushim/config.toml").stdout == "# mine\n"
    assert there.run("cat /usr/lib/gpushim/mine; ls /usr/bin/gpushim*").stdout.split() == ["mine", *LEFT]
    assert "gpushim-node has installed nothing" in there.call("uninstall", payload=payload).stdout


def test_no_create_fails_during_an_upgrade(there: Node, payload: Path, older: Path, debian_tree: Path) -> None:
    """Nor during a downgrade, which is what a rollback is."""
    (there.state / "containers").symlink_to(debian_tree)
    there.call("install", "--engine=none", payload=older)
    with beside(there, CREATES, stub=recorder.build(there.state)) as creates:
        for each in (payload, older, payload):
            there.call("install", "--engine=none", payload=each)
    assert creates[0] > 20
    assert there.run("ls /usr/lib/gpushim").stdout.split() == [__version__]
    assert there.run("gpushim --version; gpushim-node || true").stdout == f"gpushim {__version__}\n"


def test_what_a_killed_installer_left_is_completed(there: Node, payload: Path) -> None:
    there.call("install", "--engine=none", payload=payload)
    whole = settled(there)
    lib = f"/usr/lib/gpushim/{__version__}"
    there.run(
        f"cd {lib}; rm whole gpushim/create/create.py /usr/bin/gpushim; echo '# half' >>gpushim/decision/plan.py"
    )
    assert "is installed\n" in there.call("install", "--engine=none", payload=payload).stdout
    assert {path: each for path, each in settled(there).items() if "pycache" not in path} == {
        path: each for path, each in whole.items() if "pycache" not in path
    }
