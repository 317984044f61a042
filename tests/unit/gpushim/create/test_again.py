"""A bundle that is created again: from what the engine wrote, if config.json still is what the last create wrote."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any, Optional
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from gpushim.cdi import resolve
from gpushim.create import create
from gpushim.ground.errors import GpushimError
from gpushim.oci import edits
from unit.gpushim.oci.example_edits import ALL, FOREIGN, HOOK, SET_NODE

OUR_HOOK = edits.Edit("hook", {**HOOK, "args": [*HOOK["args"], "--rootfs", "/r"]})


def text(spec: Any) -> bytes:
    return json.dumps(spec).encode()


def some(*values: Any) -> st.SearchStrategy[Any]:
    return st.lists(st.sampled_from(values), unique_by=repr)


def node(path: str, minor: int) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": 195, "minor": minor}


def bind(place: str, *options: str) -> dict[str, Any]:
    return {"destination": place, "source": "/s", "type": "bind", "options": [*options]}


LIBRARY = "/usr/lib/libcuda.so.1"
RULES = [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c", "major": 195, "access": "rw"}]
GIVEN = [{"path": "/bin/nvidia-container-runtime-hook"}, {"path": "/bin/theirs"}]
# What engines write, as far as edits can touch it or go by it.
SPECS = st.fixed_dictionaries(
    {
        "process": st.fixed_dictionaries(
            {"env": some("A=1", "PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all")},
            optional={
                "user": st.fixed_dictionaries({"uid": st.just(0)}, optional={"additionalGids": some(7, 44, 5)})
            },
        ),
    },
    optional={
        "annotations": st.just({"a": "b"}),
        "hooks": st.fixed_dictionaries({}, optional={"prestart": some(*GIVEN), "createRuntime": some(*GIVEN)}),
        "mounts": some(
            {"destination": "/dev", "type": "tmpfs"},
            bind("/opt", "rbind", "rprivate"),
            bind("/usr", "rbind", "rslave"),
            bind("/data", "rbind", "rshared"),
            bind(LIBRARY, "bind"),
        ),
        "linux": st.fixed_dictionaries(
            {},
            optional={
                "devices": some(node("/dev/nvidia0", 0), {**SET_NODE, "minor": 9}, node("/dev/y", 3)),
                "resources": st.fixed_dictionaries({}, optional={"devices": some(*RULES)}),
                "intelRdt": st.sampled_from([{}, {"closID": "theirs"}]),
                "rootfsPropagation": st.sampled_from(["rprivate", "shared", "rshared"]),
            },
        ),
    },
)
# What creates give on hosts that differ: nothing, because nothing is asked for, or some of these.
PLANS = st.none() | some(
    *ALL[:-1],
    OUR_HOOK,
    *FOREIGN,
    edits.Edit("node", node("/dev/nvidia0", 1)),
    edits.Edit("rule", ("c", 195, 1, "rw")),
    edits.Edit("mount", bind(LIBRARY, "ro", "rbind", "rprivate")),
    edits.Edit("mount", {**bind(LIBRARY, "ro", "rbind", "rprivate"), "source": "/of/another/driver"}),
    edits.Edit("set-mount", bind("/data/x", "rbind")),
    edits.Edit("env", ("NVIDIA_VISIBLE_DEVICES", "void")),
    edits.Edit("rdt", {"closID": "d"}),
).map(resolve.last_counts)


def create_with(planned: Optional[list[edits.Edit]], bundle: str) -> bool:
    """Create a bundle's container with a plan, or none as nothing is asked for; return whether it was not refused."""
    decision = mock.Mock(ask=lambda _: planned, edits=copy.deepcopy(planned), low_level=lambda: "")
    with mock.patch.multiple(create, Decision=lambda *_: decision, of_bundle=lambda *_: {"rootfs": "/r"}):
        try:
            create.edit("", bundle, "x", 0)
        except GpushimError:
            return False
    return True


def change(spec: Any, number: int) -> None:
    """Change a config.json between two creates, as somebody may."""
    if number == 0:
        spec["hostname"] = "changed"
    elif number == 1:
        spec["process"]["env"].insert(0, "C=9")
    elif number == 2:
        spec["mounts"] = [bind("/mine", "rbind", "rprivate"), *spec.get("mounts", [])]
    elif number == 3:
        spec.setdefault("annotations", {})["c"] = "d"


@given(SPECS, st.lists(PLANS, min_size=1, max_size=3), PLANS)
def test_many_creates_are_as_the_last_alone(spec: Any, hosts: Any, last: Any) -> None:
    with tempfile.TemporaryDirectory() as again, tempfile.TemporaryDirectory() as once:
        for bundle in (again, once):
            Path(bundle, "config.json").write_bytes(text(spec))
        for planned in hosts:
            create_with(planned, again)
        served = create_with(last, once)
        assert create_with(last, again) == served
        found, wanted = (Path(bundle, "config.json").read_bytes() for bundle in (again, once))
        assert found == wanted or not served


@given(SPECS, PLANS, st.integers(0, 3))
def test_what_somebody_has_changed_is_the_engines_and_gets_nothing_twice(
    spec: Any, planned: Any, number: int
) -> None:
    with tempfile.TemporaryDirectory() as bundle:
        config = Path(bundle, "config.json")
        config.write_bytes(text(spec))
        create_with(planned, bundle)
        changed = json.loads(config.read_bytes())
        change(changed, number)
        config.write_bytes(text(changed))
        create_with(planned, bundle)
        assert json.loads(config.read_bytes()) == changed
