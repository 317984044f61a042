"""Which cgroup decides, and rules that the kernel enforces: cgroup v1 and v2, rootless, systemd's units."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuhook.inject import bpf, devices, systemd
from gpushim.ground.errors import GpushimError
from gpushim.paths.mountinfo import parse
from unit.gpuhook.cgroups import (
    ALLOWED,
    DENIED,
    DENY,
    attach,
    deny,
    group,
    member,
    opens,
    programs,
    show,
)
from unit.gpuhook.sandbox import TOP, forked

GPUS = [(195, 0), (195, 255)]
HYBRID = "9:name=systemd:/init.scope\n8:pids:/p\n5:cpu,devices:/v1/a\n0::/v2/b\n"


def allow(pid: int, numbers: list[tuple[int, int]] = GPUS) -> list[str]:
    said: list[str] = []
    devices.allow(f"/proc/{pid}", numbers, lambda what, error: said.append(f"{what}: {error}"))
    return said


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HYBRID, {"1": "/v1/a", "2": "/v2/b"}),
        ("0::/user.slice/a:b c\n", {"2": "/user.slice/a:b c"}),
        ("3:devices:/x (deleted)\n", {"1": "/x (deleted)"}),
        ("5:name=devices:/named\n", {}),
        ("", {}),
        ("\n:\n::\n0:\n", {}),
    ],
)
def test_paths(text: str, found: dict[str, str]) -> None:
    assert devices.paths(text) == found


def mount(root: str, point: str, kind: str, options: str = "rw", device: str = "0:33", tags: str = "") -> str:
    return f"36 31 {device} {root} {point} rw,relatime{tags} - {kind} none {options}\n"


V1 = mount("/", "/sys/fs/cgroup/devices", "cgroup", "rw,devices")
V2 = mount("/", "/sys/fs/cgroup", "cgroup2", device="0:26", tags=" shared:9 master:1")


@pytest.mark.parametrize(
    ("text", "version", "path", "found"),
    [
        (V1 + V2, "1", "/docker/a", ["/sys/fs/cgroup/devices/docker/a"]),
        (V1 + V2, "2", "/docker/a", ["/sys/fs/cgroup/docker/a"]),
        (V1, "1", "/", ["/sys/fs/cgroup/devices/"]),
        (mount("/", "/odd", "cgroup", "rw,cpu,devices"), "1", "/a", ["/odd/a"]),
        (mount("/", "/devices", "cgroup", "rw,devicesque"), "1", "/a", []),
        (mount("/", "/sys/fs/cgroup/devices", "tmpfs", "rw,devices"), "1", "/a", []),
        (mount("/docker/x", "/cg", "cgroup2"), "2", "/docker/x/y/z", ["/cg/y/z"]),
        (mount("/docker/x", "/cg", "cgroup2"), "2", "/docker/x", ["/cg"]),
        (mount("/docker/x", "/cg", "cgroup2"), "2", "/docker/xy", []),
        (mount("/..", "/cg", "cgroup2"), "2", "/a", []),
        (mount("/", "/a\\040b\\134c", "cgroup2"), "2", "/a", ["/a b\\c/a"]),
        (mount("/a\\011b", "/cg", "cgroup2"), "2", "/a\tb/c", ["/cg/c"]),
        (V2 + mount("/", "/second", "cgroup2"), "2", "/a", ["/sys/fs/cgroup/a", "/second/a"]),
        ("", "2", "/a", []),
    ],
)
def test_places(text: str, version: str, path: str, found: list[str]) -> None:
    assert [place for place, _ in devices.list_directories(parse(text.encode()), version, path)] == found


def test_the_mount_is_known_by_its_device() -> None:
    assert devices.list_directories(parse(V2.encode()), "2", "/a") == [("/sys/fs/cgroup/a", os.makedev(0, 26))]


@pytest.mark.parametrize(
    ("path", "own", "found"),
    [
        ("/system.slice/docker-1.scope", "/system.slice/docker.service", ("docker-1.scope", 0)),
        ("/machine.slice/libpod-1.scope/container", "/user.slice", ("libpod-1.scope", 1)),
        ("/system.slice/docker-1.scope/container", "/system.slice/docker-1.scope/conmon", ("", 0)),
        # --cgroup-parent x.service, x.scope, and a service that a container has been put into
        ("/x.service/1", "/system.slice/docker.service", ("", 0)),
        ("/x.service/container", "/system.slice/docker.service", ("", 0)),
        ("/x.scope/1", "/system.slice/docker.service", ("", 0)),
        ("/system.slice/x.service", "/system.slice/x.service.d", ("", 0)),
        ("/x.service/libpod-1.scope/container", "/", ("libpod-1.scope", 1)),
        ("/kubepods.slice/pod.slice/cri-containerd-1.scope", "/", ("cri-containerd-1.scope", 0)),
        ("/docker/1", "/system.slice/docker.service", ("", 0)),
        ("/system.slice/outer.scope/docker/1", "/", ("", 0)),
        ("/system.slice/own.service/libpod-payload-1", "/system.slice/own.service/runtime", ("", 0)),
        ("/system.slice/own.service", "/system.slice/own.service", ("", 0)),
        ("/", "/", ("", 0)),
        ("/a.slice", "/", ("", 0)),
    ],
)
def test_unit(path: str, own: str, found: tuple[str, int]) -> None:
    assert devices.unit(path, own) == found


def proc(top: Path, cgroups: str, mounts: str) -> None:
    for pid in ("self", "7"):
        (top / pid).mkdir()
        (top / pid / "cgroup").write_text(cgroups)
    (top / "self/mountinfo").write_text(mounts)


@pytest.mark.parametrize(
    ("cgroups", "mounts", "found"),
    [
        (HYBRID, V1 + V2, ("1", "/v1/a")),
        (HYBRID, V2, ("2", "/v2/b")),
        ("0::/b\n", V2, ("2", "/b")),
        ("0::/b\n", V1 + V2, ("2", "/b")),
        ("4:devices:/../x\n0::/b\n", V1 + V2, ("2", "/b")),
    ],
)
def test_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: str, mounts: str, found: tuple[str, str]
) -> None:
    monkeypatch.setattr(devices, "PROC", str(tmp_path))
    proc(tmp_path, cgroups, mounts)
    cgroup = devices.find(f"{tmp_path}/7")
    assert cgroup is not None
    assert (cgroup.version, cgroup.path) == found


@pytest.mark.parametrize("cgroups", ["0::/..\n", "0::/../../x\n", "3:devices:/x\n"])
def test_a_cgroup_that_no_mount_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: str) -> None:
    monkeypatch.setattr(devices, "PROC", str(tmp_path))
    proc(tmp_path, cgroups, V2)
    with pytest.raises(
        GpushimError, match=r"^no cgroup mount shows the cgroup /.* of the container's process, which must change"
    ):
        devices.find(f"{tmp_path}/7")


def test_a_kernel_without_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PROC", str(tmp_path))
    proc(tmp_path, "", "")
    assert devices.find(f"{tmp_path}/7") is None


def test_a_process_that_has_ended() -> None:
    with pytest.raises(GpushimError, match="the cgroup of the container's process cannot be found: No such file"):
        allow((1 << 31) - 1)


def test_no_numbers_need_nothing() -> None:
    assert allow((1 << 31) - 1, []) == []


@pytest.mark.parametrize("times", [1, 3])
def test_version_1(tmp_path: Path, times: int) -> None:
    def inside() -> str:
        with group(show("1"), "v1") as path, member(path) as pid:
            deny(path, "1")
            before = opens(path, tmp_path, "c195:0")
            assert [allow(pid) for _ in range(times)] == [[]] * times
            assert (path / "devices.list").read_text() == "c 195:0 rw\nc 195:255 rw\n"
            return f"{before}, {opens(path, tmp_path, 'c195:0', 'c195:255', 'c195:1', 'b195:0')}"

    assert forked(inside, namespace=True) == f"{DENIED}, {ALLOWED} {ALLOWED} {DENIED} {DENIED}"


@pytest.mark.parametrize("version", ["1", "2"])
def test_where_everything_is_allowed(tmp_path: Path, version: str) -> None:
    def inside() -> str:
        with group(show(version), "all") as path, member(path) as pid:
            assert allow(pid) == []
            return opens(path, tmp_path, "c195:0", "c195:1")

    assert forked(inside, namespace=True) == f"{ALLOWED} {ALLOWED}"


@pytest.mark.parametrize("times", [1, 3])
def test_version_2(tmp_path: Path, times: int) -> None:
    def inside() -> str:
        with group(show("2"), "v2") as path, member(path) as pid:
            attach(path, DENY, DENY)
            before = opens(path, tmp_path, "c195:0")
            assert [allow(pid) for _ in range(times)] == [[]] * times
            assert programs(path) == [bpf.allowing(GPUS) + DENY] * 2
            return f"{before}, {opens(path, tmp_path, 'c195:0', 'c195:255', 'c195:1', 'b195:0')}"

    assert forked(inside, namespace=True) == f"{DENIED}, {ALLOWED} {ALLOWED} {DENIED} {DENIED}"


@pytest.mark.parametrize("place", ["", "below"])
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_cgroup_that_is_the_engines_too(tmp_path: Path, version: str, place: str) -> None:
    """T-CGROUP: the container has none of its own, and this process is in the same one, or below it."""

    def inside() -> str:
        top = show(version)
        with group(top, "engine") as path, member(path) as pid:
            deny(path, version)
            with group(path, "below") as below:
                ((below if place else path) / "cgroup.procs").write_text(str(os.getpid()))
                try:
                    with pytest.raises(GpushimError, match="has no cgroup of its own: it is in /gpushim-"):
                        allow(pid)
                finally:
                    (top / "cgroup.procs").write_text(str(os.getpid()))
            return opens(path, tmp_path, "c195:0")

    assert forked(inside, namespace=True) == DENIED


def test_a_part_of_the_tree_is_mounted_elsewhere(tmp_path: Path) -> None:
    """As in a container that shares the host's cgroup namespace and runs containers itself."""

    def inside() -> str:
        with group(show("2"), "outer") as outer, group(outer, "inner") as path, member(path) as pid:
            attach(path, DENY)
            (tmp_path / "cg").mkdir()
            commands = f"mount --bind {outer} {tmp_path}/cg; umount --lazy /sys/fs/cgroup"
            subprocess.run(["/bin/sh", "-ec", commands], check=True)
            assert allow(pid) == []
            found = opens(tmp_path / "cg" / path.name, tmp_path, "c195:0", "c195:1")
            subprocess.run(["/bin/mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"], check=True)
            return found

    assert forked(inside, namespace=True) == f"{ALLOWED} {DENIED}"


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_unit_and_what_crun_has_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    told: list[object] = []
    monkeypatch.setattr(systemd, "extend", lambda *words: told.append(words))

    def inside() -> str:
        with group(show(version), ".scope") as scope:
            deny(scope, version)
            with group(scope, "container", "") as path, member(path) as pid:
                deny(path, version)
                assert allow(pid) == []
                assert told == [(scope.name, GPUS)]
                return opens(path, tmp_path, "c195:0", "c195:1")

    assert forked(inside, namespace=True) == f"{ALLOWED} {DENIED}"


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("kind", [".service", ".scope"])
def test_the_parent_that_somebody_named_gets_no_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, kind: str
) -> None:
    """`--cgroup-parent x.service`: it is not the container's unit, and holds other things too."""
    monkeypatch.setattr(systemd, "extend", lambda *_: pytest.fail("systemd was told"))

    def inside() -> str:
        with group(show(version), kind) as parent:
            if version == "2":
                attach(parent, DENY)
            with group(parent, "0123") as path, member(path) as pid:
                deny(path, version)
                assert allow(pid) == []
                if version == "2":
                    assert programs(parent) == [DENY]
                else:
                    assert (parent / "devices.list").read_text() == "a *:* rwm\n"
                return opens(path, tmp_path, "c195:0", "c195:1")

    # On v2 both must allow, so the administrator's word about the parent stands; v1 inherits nothing later.
    assert forked(inside, namespace=True) == f"{DENIED if version == '2' else ALLOWED} {DENIED}"


def test_a_process_that_left_its_cgroup_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other container's cgroup gets a rule, even if it came to the path of one that is gone."""
    found = devices.find

    def inside() -> str:
        with group(show("1"), "one") as path, group(show("1"), "two") as other, member(path) as pid:

            def late(process: str) -> object:
                cgroup = found(process)
                (other / "cgroup.procs").write_text(str(pid))
                return cgroup

            monkeypatch.setattr(devices, "find", late)
            deny(path, "1")
            with pytest.raises(GpushimError, match="the container's process has left it"):
                allow(pid)
            return (path / "devices.list").read_text()

    assert forked(inside, namespace=True) == ""


def test_systemd_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules are in force all the same, and the log says what will happen."""

    def fail(*_: object) -> None:
        raise GpushimError("no answer in time")

    monkeypatch.setattr(systemd, "extend", fail)

    def inside() -> list[str]:
        with group(show("2"), ".scope") as path, member(path) as pid:
            attach(path, DENY)
            said = allow(pid)
            assert programs(path) == [bpf.allowing(GPUS) + DENY]
            return said

    (line,) = forked(inside, namespace=True)
    assert line.startswith("the device rules of systemd's unit gpushim-")
    assert line.endswith("no answer in time; `systemctl daemon-reload` may take the GPUs away from the container")


@pytest.fixture
def public() -> Iterator[Path]:
    """The sources where every user may read them, which the checkout need not be."""
    with TemporaryDirectory(dir="/tmp") as made:
        top = Path(made)
        for part in ("hook/gpuhook", "shim/gpushim"):
            shutil.copytree(TOP / part, top / Path(part).name)
        for path in (top, *top.rglob("*")):
            path.chmod(0o755)
        yield top


USER = "setpriv --reuid 12345 --regid 12345 --clear-groups"


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("user", [USER, "unshare --user --map-root-user", f"{USER} unshare --user --map-root-user"])
def test_rootless(public: Path, version: str, user: str) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; from gpuhook.inject import devices; "
        "devices.allow('/proc/' + sys.argv[1], [(195, 0)], lambda what, error: print(what, error, sep=': '))"
    )

    def inside() -> str:
        with group(show(version), "r") as path, member(path) as pid:
            words = [*user.split(), "/usr/bin/python3", "-IBSc", code, str(pid), str(public)]
            return subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True, cwd="/").stdout

    (line,) = forked(inside, namespace=True).splitlines()
    assert line.startswith("the device rules, which this user may not change: the device rules of the container's")


@pytest.mark.parametrize("version", ["1", "2"])
def test_root_that_may_not(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(devices, f"_allow_v{version}", denied)

    def inside() -> str:
        with group(show(version), "d") as path, member(path) as pid:
            with pytest.raises(GpushimError) as caught:
                allow(pid)
            return str(caught.value).replace(path.name, "NAME")

    text = (
        f"the device rules of the container's cgroup /NAME (v{version}) cannot be changed: Operation not permitted;"
    )
    assert forked(inside, namespace=True) == f"{text} use the runtime gpushim-runtime, which needs no such change"


def test_ctypes_only_for_version_2() -> None:
    code = f"import sys; sys.path[:0] = ['{TOP}/hook', '{TOP}/shim']; from gpuhook.inject import devices; "
    code += "devices.allow('', [], print); print(*{'ctypes', 'struct', '_socket', 'os'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "\n"
