"""What `nvidia-container-cli configure` asks for, and what it puts into a container."""

from __future__ import annotations

import posix
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import standalone
from gpuhook.inject import apply
from gpuhook.nvidia import container_cli_configure
from gpushim.config.policy import defaults
from gpushim.decision.decide import Decision
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.nvidia.container_cli import getopt
from gpushim.nvidia.container_cli.cli_options import COMMANDS
from gpushim.oci.edits import Edit
from gpushim.oci.request import Request
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.sandbox import HOOK, TOP, forked
from unit.gpushim.decision.inventories import snapshot

CLI = str(HOOK.with_name("nvidia-container-cli"))
CTR = "--device=0,1 --compute --compat32 --graphics --utility --video --display --pid=77 /r"
ENROOT = "--no-cgroups --ldconfig=@/sbin/ldconfig.real --device=all --utility --compute --require=cuda>=9.0 /r"


def asked(line: str, **requests: Any) -> Request:
    policy: Any = defaults()
    policy["requests"].update(requests)
    return container_cli_configure.request(getopt.parse(line.split(), COMMANDS["configure"])[0], policy)


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("", []),
        ("--device=", []),
        ("--device=0,2", [("index", 0), ("index", 2)]),
        ("-d 0 -d 2,0", [("index", 0), ("index", 2)]),
        ("--device=ALL", [("all", None)]),
        ("--device=5,all", [("all", None)]),
        ("--device=0:1", [("mig-index", (0, 1))]),
        ("--device=00000000:3b:00.0", [("pci", "00000000:3b:00.0")]),
        ("--device=nvidia.com/gpu=0", [("index", 0)]),
    ],
)
def test_devices(line: str, devices: list[tuple[str, object]]) -> None:
    assert [item[:2] for item in asked(line).devices] == devices


@pytest.mark.parametrize(
    ("line", "capabilities"),
    [
        ("", []),
        ("-cuvgDn --compat32", ["compat32", "compute", "display", "graphics", "ngx", "utility", "video"]),
        (CTR, ["compat32", "compute", "display", "graphics", "utility", "video"]),
        (ENROOT, ["compute", "utility"]),
    ],
)
def test_capabilities(line: str, capabilities: list[str]) -> None:
    assert asked(line).capabilities == capabilities


def test_the_rest_of_a_request() -> None:
    line = "--require=cuda>=9 --require= --imex-channel=3,4 --imex-channel=3 --mig-config=all --mig-monitor=ALL"
    wanted = asked(line)
    assert wanted.requirements == [("--require", "cuda>=9")]
    assert (wanted.imex, wanted.mig_config, wanted.mig_monitor) == ([3, 4], True, True)
    assert not asked(line, **{"disable-require": True}).requirements
    ignoring = asked(line, **{"ignore-imex-channel-requests": True})
    assert (ignoring.imex, len(ignoring.ignored)) == ([], 1)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--device=void", "void: unknown device"),
        ("--device=amd.com/gpu=0", "amd.com/gpu=0: unknown device"),
        ("--device=nvidia.com/gpu=gds", "nvidia.com/gpu=gds: unknown device"),
        ("--device=0,nvidia.com/gpu=imex-channel-3", "nvidia.com/gpu=imex-channel-3: unknown device"),
        ("--mig-config=0", "only 'all' devices are currently supported"),
        ("--mig-monitor=0", "only 'all' devices are currently supported"),
        ("--device=0:0 --mig-config=all", "all: cannot enable mig-config with specific MIG devices selected"),
        ("--device=0:0 --mig-monitor=all", "all: cannot enable mig-monitor with specific MIG devices selected"),
        ("--imex-channel=all", "want a number"),
        ("--imex-channel=-1", "want a number"),
        (" ".join(["--require=cuda>=1"] * 33), "more than 32"),
    ],
    ids=range(11),
)
def test_requests_that_are_wrong(line: str, text: str) -> None:
    with pytest.raises(GpushimError, match=text):
        asked(line)


class Landed:
    """What would be put into the container."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.options: Any = None
        self.pid = -1

    def land(self, edits: list[Edit], options: Any, pid: int, dev_root: str) -> None:
        self.edits, self.options, self.pid = edits, options, pid

    def paths(self, kind: str) -> list[str]:
        name = "path" if kind == "node" else "destination"
        return [edit.value[name] for edit in self.edits if edit.kind == kind]


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> Landed:
    found = Landed()
    monkeypatch.setattr(standalone, "land", found.land)
    monkeypatch.setattr(container_cli_configure, "confine", lambda *_: None)  # this process has more to do
    monkeypatch.setattr(ensure, "read", lambda _config, _state: snapshot())
    monkeypatch.setattr(Decision, "record", lambda *_: None)
    return found


def test_the_call_of_ctr(landed: Landed) -> None:
    container_cli_configure.configure(["--load-kmods", "configure", *CTR.split()])
    assert landed.pid == 77
    assert {"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia-modeset"} <= set(landed.paths("node"))
    assert "/dev/nvidia0" not in landed.paths("node")
    assert "/usr/bin/nvidia-smi" in landed.paths("mount")
    assert Edit("rule", ("c", 195, 1, "rw")) in landed.edits
    assert (landed.options.rootfs, landed.options.driver) == ("/r", "535.183.01")


def test_the_call_of_enroot(landed: Landed) -> None:
    container_cli_configure.configure(["--user", "configure", *ENROOT.split()])
    assert landed.pid == 0
    assert {"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia2"} <= set(landed.paths("node"))
    assert not [edit for edit in landed.edits if edit.kind == "rule"]


def test_nodes_are_left_out(landed: Landed) -> None:
    container_cli_configure.configure(["configure", *CTR.split()])
    assert "/dev/nvidiactl" in landed.paths("node")
    container_cli_configure.configure(["configure", "--no-devbind", *CTR.split()])
    assert landed.paths("node") == []


def test_a_services_socket_is_left_out(landed: Landed) -> None:
    container_cli_configure.configure(["configure", *CTR.split()])
    assert landed.options.socket == [("/run/nvidia-persistenced/socket",) * 2]
    container_cli_configure.configure(["configure", "--no-persistenced", *CTR.split()])
    assert landed.options.socket == []


def test_firmware_is_left_out(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    firmware = "/lib/firmware/nvidia/535.183.01/gsp_ga10x.bin"
    files = {"any": [{"path": firmware, "kind": "firmware"}]}
    monkeypatch.setattr(ensure, "read", lambda _config, _state: snapshot(files=files))
    container_cli_configure.configure(["configure", "--pid=7", "/r"])
    assert landed.paths("mount") == [firmware]
    container_cli_configure.configure(["configure", "--pid=7", "--no-gsp-firmware", "/r"])
    assert landed.paths("mount") == []
    assert landed.paths("node") == ["/dev/nvidiactl"]


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        ("--cuda-compat-mode=mount", True),
        ("--cuda-compat-mode=ldconfig", True),
        ("--cuda-compat-mode=disabled", False),
        ("--no-cntlibs", False),
    ],
)
def test_the_images_own_libcuda(landed: Landed, option: str, kept: bool) -> None:
    container_cli_configure.configure(["configure", option, *CTR.split()])
    assert bool(landed.options.driver) == bool(landed.options.cuda) == kept


def test_a_debug_file_is_the_log(landed: Landed) -> None:
    container_cli_configure.configure(["--debug=/dev/stderr", "configure", *CTR.split()])
    assert landed.options.log == "/dev/stderr"


def test_policy_may_forbid_rules(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    host = snapshot()
    host["policy"]["hook"]["device-rules"] = False
    monkeypatch.setattr(ensure, "read", lambda _config, _state: host)
    container_cli_configure.configure(["configure", *CTR.split()])
    assert not [edit for edit in landed.edits if edit.kind == "rule"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("configure --pid=7", "input error: invalid rootfs directory"),
        ("configure --pid=7 / ", "input error: invalid rootfs directory"),
        ("configure --pid=7 // ", "input error: invalid rootfs directory"),
        ("configure --pid=7 r", "input error: invalid rootfs directory"),
        ("configure --pid=7 /r /s", "input error: invalid rootfs directory"),
        ("configure --pid=x /r", "input error: --pid=x: invalid process identifier"),
        ("configure --pid=0 /r", "input error: --pid=0: invalid process identifier"),
        ("configure --device=0 /r", "input error: without --pid"),
        ("configure --nope /r", "input error: --nope is not an option"),
        ("--nope configure /r", "input error: --nope is not an option"),
        ("configure --pid=7 --debug=x /r", "input error: --debug is not an option"),
    ],
)
def test_command_lines_that_are_wrong(line: str, text: str) -> None:
    done = subprocess.run([CLI, *line.split()], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"nvidia-container-cli: {text}")
    assert done.stderr.count("\n") == 1


def test_a_compat_mode_that_there_is_not(landed: Landed) -> None:
    with pytest.raises(GpushimError, match="want one of mount, ldconfig, disabled"):
        container_cli_configure.configure(["configure", "--cuda-compat-mode=x", *CTR.split()])
    assert landed.pid == -1


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, bool], str]:
    """Apply nothing in a mount namespace of its own, after a command; returns the refusal, or ""."""

    def refused(prepare: str, userns: bool) -> str:
        monkeypatch.setattr("gpuhook.inject.mountpoints.in_user_namespace", lambda: userns)

        def attempt() -> str:
            subprocess.run(["/bin/sh", "-ec", prepare, "sh", str(tmp_path)], check=True)
            try:
                apply.apply_edits([], Rootfs("", str(tmp_path)), "/", lambda _what, _error: None)
            except GpushimError as error:
                return str(error)
            return ""

        return forked(attempt, namespace=True)

    return refused


@pytest.fixture
def process_1(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What stands for the mount namespace of process 1: a path, or none if it may not be looked at."""
    stat, place = posix.stat, {"is": ""}

    def seen(path: Any, **options: Any) -> posix.stat_result:
        if path != "/proc/1/ns/mnt":
            return stat(path, **options)
        if not place["is"]:
            raise PermissionError(13, "Permission denied")
        return stat(place["is"])

    monkeypatch.setattr(posix, "stat", seen)
    return place


PRIVATE = 'mount --bind "$1" "$1"'


@pytest.mark.parametrize(
    ("namespace", "userns", "refused"),
    [
        ("/proc/self/ns/mnt", False, True),
        ("/proc/self/ns/mnt", True, True),
        ("/proc/self/ns/pid", False, False),
        ("/proc/self/ns/pid", True, False),
        ("", False, True),
        ("", True, False),
    ],
)
def test_whether_this_is_the_hosts_namespace(
    refusal: Callable[[str, bool], str], process_1: dict[str, str], namespace: str, userns: bool, refused: bool
) -> None:
    process_1["is"] = namespace
    assert ("cannot be told from it" in refusal(PRIVATE, userns)) is refused


def test_a_shared_rootfs(refusal: Callable[[str, bool], str], process_1: dict[str, str]) -> None:
    process_1["is"] = "/proc/self/ns/pid"
    assert "shared mount" in refusal(f'{PRIVATE}; mount --make-shared "$1"', False)


def test_the_modules_that_it_imports() -> None:
    """An engine waits for it: what takes long to import stays out."""
    code = f"import sys; sys.path[:0] = ['{TOP}/hook', '{TOP}/shim']; "
    code += "from gpuhook.nvidia import dispatch, container_cli_configure; "
    code += "print(*[name for name in ('click', 're', 'os', 'json', 'typing', 'subprocess') if name in sys.modules])"
    done = subprocess.run(["/usr/bin/python3", "-ISB", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
