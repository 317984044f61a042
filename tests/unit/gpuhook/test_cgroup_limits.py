"""Limits of GPU memory set in a container's cgroup: the kernel's files, NVML's child, and what is not in force.

No kernel of Debian's has the controller dmem: here its files are plain ones; tests/machine has the real one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpuhook import cgroup_limits, prestart
from gpuhook.inject import devices
from gpuhook.loader.options import Options
from gpushim.ground.errors import GpushimError

TOP = Path(__file__).parents[3]
GIB = 1 << 30
REGION = "nvidia/0000:07:00.0/vidmem"
LEAF = "system.slice/docker-1.scope"


class Host:
    """Directories for cgroups, and what the hook says of a container in one."""

    def __init__(self, top: Path) -> None:
        self.top, self.leaf = top, top / LEAF
        self.warned: list[str] = []
        self.state: dict[str, Any] = {}
        self.leaf.mkdir(parents=True)

    def give_dmem(self, *names: str) -> None:
        """Have the kernel's controller know these regions, as far as the directories show it."""
        for folder in (self.top, self.top / "system.slice"):
            (folder / "cgroup.controllers").write_text("cpu dmem memory\n")
            (folder / "cgroup.subtree_control").write_text("cpu memory\n")
        (self.leaf / "dmem.max").write_text("".join(f"{name} max\n" for name in names))

    def limit(self, *words: str, how: str = "required") -> None:
        options = Options(["--memory-limits", how, *words])
        cgroup_limits.limit(
            options, self.state, "/proc/self", lambda what, error: self.warned.append(f"{what}: {error}")
        )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose container's cgroup is two levels below the root."""
    made = Host(tmp_path / "cgroup")
    cgroup = devices.Cgroup("2", f"/{LEAF}", [(str(made.leaf), made.leaf.stat().st_dev)])
    monkeypatch.setattr(devices, "find", lambda process, versions: cgroup)
    monkeypatch.setattr(devices, "is_shared", lambda cgroup: False)
    monkeypatch.setattr(devices, "is_in", lambda process, cgroup: True)
    monkeypatch.setattr(cgroup_limits, "DEPTH", 2)
    return made


def test_the_kernel_keeps_the_limit_of_the_leaf(host: Host) -> None:
    host.give_dmem(REGION)
    host.limit("--memory", f"00000000:07:00.0={GIB}")
    assert (host.leaf / "dmem.max").read_text().startswith(f"{REGION} {GIB}")
    for folder in (host.top, host.top / "system.slice"):
        assert (folder / "cgroup.subtree_control").read_text().startswith("+dmem")


def test_what_the_kernel_does_not_keep_is_no_limit(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.give_dmem(REGION)
    write = cgroup_limits._write
    monkeypatch.setattr(
        cgroup_limits, "_write", lambda directory, name, text: name == "dmem.max" or write(directory, name, text)
    )
    with pytest.raises(GpushimError, match=f"the kernel says max where {GIB} bytes of GPU 0000:07:00.0"):
        host.limit("--memory", f"00000000:07:00.0={GIB}")
    host.limit("--memory", f"00000000:07:00.0={GIB}", how="wanted")
    assert ["not in force" in said for said in host.warned] == [True]


@pytest.mark.parametrize("missing", ["controllers", "region"])
def test_without_the_kernel_nvml_is_asked(host: Host, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cgroup_limits, "_set_by_nvml", lambda *words: asked.append(words[:2]))
    if missing == "region":
        host.give_dmem("other/region")
    host.limit("--memory", f"00000000:07:00.0={GIB}", "--nvml", "/lib/nvml")
    assert asked == [({"0000:07:00.0": GIB}, "/lib/nvml")]


def test_a_cgroup_that_is_the_engines_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "is_shared", lambda cgroup: True)
    with pytest.raises(GpushimError, match="no cgroup of its own"):
        host.limit("--memory", f"0:07:00.0={GIB}")


def test_a_container_that_may_leave_its_cgroup_is_refused(host: Host) -> None:
    """crun lets it begin in a cgroup below its own, by an annotation that an image can have."""
    host.give_dmem(REGION)
    host.state = {"annotations": {"run.oci.delegate-cgroup": "mine"}}
    with pytest.raises(GpushimError, match="lets it leave the cgroup"):
        host.limit("--memory", f"0:07:00.0={GIB}")
    host.limit()  # nothing is limited


def test_a_restored_container_is_limited_though_its_rootfs_has_no_path(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[list[tuple[str, int]]] = []
    monkeypatch.setattr(cgroup_limits, "limit", lambda options, *_: limited.append(options.memory))
    options = Options(
        ["--rootfs", str(tmp_path / "gone"), "--memory-limits", "required", "--memory", f"0:07:00.0={GIB}"]
    )
    with pytest.raises(GpushimError, match="cannot be opened"):
        prestart._limit(options, {"pid": os.getpid(), "status": "created"}, {})
    prestart._limit(options, {"pid": os.getpid(), "status": "stopped"}, {})
    assert limited == [[("0:07:00.0", GIB)]]


def test_without_cgroup_v2_it_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find", lambda process, versions: None)
    with pytest.raises(GpushimError, match="need cgroup v2"):
        host.limit("--memory", f"0:07:00.0={GIB}")


def test_an_nvml_without_the_driver_is_refused(host: Host) -> None:
    with pytest.raises(GpushimError, match="no NVML to ask"):
        host.limit("--memory", f"0:07:00.0={GIB}")
    with pytest.raises(GpushimError, match="NVML cannot be used"):
        host.limit("--memory", f"0:07:00.0={GIB}", "--nvml", f"{host.top}/none")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone sets limits")
class TestNvml:
    """The child, with the simulated NVML."""

    @staticmethod
    def build(host: Host, driver: str = "615.71", **more: Any) -> tuple[fakehost.Host, list[str]]:
        made = fakehost.build(
            str(host.top.parent / "host"), 1, driver=driver, compile_cache=str(TOP / ".cache" / "fakehost"), **more
        )
        libraries = (host.top.parent / "host/usr/lib").rglob("libnvidia-ml.so." + driver)
        library = next(path for path in libraries if "i386" not in str(path))
        return made, ["--memory", f"{made.gpus[0].pci}={GIB}", "--nvml", str(library)]

    def test_it_sets_the_limit_of_the_leaf(self, host: Host) -> None:
        made, words = self.build(host)
        host.limit(*words)
        line = (host.top.parent / "host/usr/lib/fakehost/memory-limits").read_text().split()
        assert line == [made.gpus[0].uuid, str(host.leaf), str(GIB)]

    def test_an_old_driver_is_refused(self, host: Host) -> None:
        _, words = self.build(host, "610.10")
        with pytest.raises(GpushimError, match="need driver 615 or newer"):
            host.limit(*words)

    def test_a_limit_that_the_driver_forgets_is_not_in_force(self, host: Host) -> None:
        _, words = self.build(host)
        (host.top.parent / "host/usr/lib/fakehost/memory-limits-lost").touch()
        with pytest.raises(GpushimError, match=r"NVML keeps .* bytes for GPU"):
            host.limit(*words)

    def test_an_nvml_that_hangs_is_given_up(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        made, words = self.build(host)
        made.behave(hang=True)
        monkeypatch.setattr(cgroup_limits, "NVML_SECONDS", 0.5)
        with pytest.raises(GpushimError, match="NVML has not answered"):
            host.limit(*words)
