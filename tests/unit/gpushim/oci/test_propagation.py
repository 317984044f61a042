from __future__ import annotations

import copy
from typing import Any, Optional

import pytest

from gpushim.ground.errors import BUNDLE, GpushimError
from gpushim.oci import edits, propagation
from gpushim.oci.edits import FILE_OPTIONS, Edit

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
DEV, PROC = ({"destination": place, "type": "tmpfs", "source": "none"} for place in ("/dev", "/proc"))


def volume(place: str, *options: str) -> dict[str, Any]:
    return {"destination": place, "source": "/x", "type": "bind", "options": list(options)}


def ours(place: str = LIBRARY) -> Edit:
    return Edit("mount", {"destination": place, "source": f"/d{place}", "type": "bind", "options": [*FILE_OPTIONS]})


def arranged(mounts: list[dict[str, Any]], *planned: Edit, root: Optional[str] = "shared") -> list[str]:
    """Return the destinations in their order."""
    spec: dict[str, Any] = {"mounts": copy.deepcopy(mounts), "linux": {"rootfsPropagation": root}}
    plan = planned or (ours(),)
    edits.apply(plan, spec)
    propagation.arrange(plan, spec, "/nowhere")
    assert [mount for mount in spec["mounts"] if mount in mounts] == mounts  # in their own order
    return [mount["destination"] for mount in spec["mounts"]]


@pytest.mark.parametrize("root", [None, "", "rprivate", "rslave"])
def test_where_nothing_can_propagate_ours_come_last(root: Optional[str]) -> None:
    assert arranged([PROC, volume("/data", "rbind", "rshared"), DEV], root=root)[-1] == LIBRARY


@pytest.mark.parametrize("root", ["private", "slave", "shared", "rshared", "unbindable", "what comes next"])
@pytest.mark.parametrize("options", [("rbind",), ("bind", "shared"), ("rbind", "rshared"), ("rbind", "private")])
def test_ours_come_before_what_can_propagate(root: str, options: tuple[str, ...]) -> None:
    assert arranged([PROC, volume("/data", *options), DEV], root=root) == ["/proc", LIBRARY, "/data", "/dev"]


@pytest.mark.parametrize("options", [("bind", "private"), ("rbind", "rslave"), ("bind", "unbindable")])
def test_a_volume_of_its_own(options: tuple[str, ...]) -> None:
    assert arranged([volume("/usr", *options), PROC]) == ["/usr", "/proc", LIBRARY]


@pytest.mark.parametrize("above", ["/", "/usr", "/usr/lib/", "//usr/./lib", "/a/../usr/lib", LIBRARY + "/"])
def test_ours_come_behind_what_is_above_them(above: str) -> None:
    found = arranged([PROC, volume(above, "rbind", "rslave"), volume("/data", "rbind", "rshared")])
    assert found == ["/proc", above, LIBRARY, "/data"]


@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        ([volume("/usr/lib", "rbind", "rshared")], "lies on the volume /usr/lib, and"),
        ([volume("/data", "rbind"), volume("/usr", "rbind", "rslave")], "/usr, which comes after the volume /data"),
        ([volume("/usr", "rbind", "shared"), volume("/usr/lib", "rbind", "rslave")], "lies on /usr/lib, which comes"),
    ],
)
def test_where_there_is_no_place_the_volume_is_named(mounts: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(GpushimError) as caught:
        arranged(mounts)
    assert said in str(caught.value)
    assert caught.value.exit_code == BUNDLE


def test_a_file_system_of_its_own_is_nobodys_peer() -> None:
    assert arranged([PROC, DEV, {"destination": "/run", "type": "tmpfs", "options": ["rw"]}])[-1] == LIBRARY
    cgroup = {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]}
    assert arranged([PROC, cgroup]) == ["/proc", LIBRARY, "/sys/fs/cgroup"]


def test_what_has_no_type_is_bound() -> None:
    untyped = {"destination": "/data", "source": "/x"}
    assert arranged([PROC, untyped]) == arranged([PROC, {**untyped, "type": "none"}]) == ["/proc", LIBRARY, "/data"]


def test_without_mounts_of_ours_nothing_is_looked_at() -> None:
    spec: dict[str, Any] = {"mounts": ["no mount"], "linux": {"rootfsPropagation": "shared"}}
    propagation.arrange([Edit("env", ("A", "1"))], spec, "/nowhere")
    assert spec["mounts"] == ["no mount"]


def test_the_hook_is_told_where_something_can_propagate() -> None:
    hook = Edit("hook", {"path": "/x/gpushim-hook", "args": ["gpushim-hook", "prestart", "--rootfs", "/r"]})
    arranged([PROC], ours(), hook)
    assert "--mounted" not in hook.value["args"]
    arranged([volume("/data", "rbind")], ours(), hook)
    assert hook.value["args"][-2:] == ["--mounted", f"/d{LIBRARY}::{LIBRARY}"]


def test_mounts_of_cdi_specs_go_by_the_same_rule() -> None:
    theirs = Edit("set-mount", {"destination": "/opt", "source": "/o", "options": ["rbind"]})
    assert arranged([volume("/data", "rbind")], theirs) == ["/opt", "/data"]
    assert theirs.value["options"] == ["rbind", "rprivate"]
    meant = Edit("set-mount", {"destination": "/opt", "source": "/o", "options": ["rbind", "rshared"]})
    assert arranged([PROC], meant, ours()) == ["/proc", LIBRARY, "/opt"]
    with pytest.raises(GpushimError):
        arranged([volume("/data", "rbind")], Edit("set-mount", {**meant.value, "destination": "/data/x"}))
