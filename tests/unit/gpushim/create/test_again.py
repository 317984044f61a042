from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.create import again, create
from gpushim.ground.errors import GpushimError
from gpushim.inventory import nodes
from gpushim.oci import edits
from gpushim.oci.device_list import NODES
from unit.gpushim.oci.test_edits import ALL, FOREIGN, HOOK, SET_NODE

ENGINES: dict[str, Any] = {
    "process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0"], "user": {"uid": 0}},
    "mounts": [{"destination": "/proc", "type": "proc"}],
    "linux": {"devices": [], "resources": {"devices": [{"allow": False, "access": "rwm"}]}},
}
HOOKED = [*ALL[:-1], edits.Edit("hook", {**HOOK, "args": [*HOOK["args"], "--rootfs", "/r"]})]

OUR_RULE = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
FILE = {"destination": "/usr/bin/nvidia-smi", "source": "/d/usr/bin/nvidia-smi", "type": "bind"}
FILE["options"] = edits.FILE_OPTIONS  # type: ignore[assignment]
# As plans are: HOOKED with a mount of theirs.
PLANNED = [edit for edit in HOOKED if edit.kind not in ("mount", "gid")] + [edits.Edit("mount", FILE)]


def text(spec: Any) -> bytes:
    return json.dumps(spec).encode()


def created(planned: list[edits.Edit]) -> Any:
    """Return what a create makes of the engine's config.json."""
    spec = copy.deepcopy(ENGINES)
    edits.apply(copy.deepcopy(planned), spec)
    return spec


@pytest.mark.parametrize("planned", [HOOKED, [*HOOKED, *FOREIGN[:-2]]])
def test_nothing_of_it_stays(planned: list[edits.Edit]) -> None:
    spec = created(planned)
    changed = {**spec, "hostname": "changed"}
    assert json.loads(again.without(text(changed), text(spec), text(ENGINES))) == {**ENGINES, "hostname": "changed"}


def test_what_somebody_has_changed_stays() -> None:
    spec = created(HOOKED)
    ours = text(spec)
    spec["process"]["env"] = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"]
    spec["mounts"].insert(0, {"destination": "/mine"})
    found = json.loads(again.without(text(spec), ours, text(ENGINES)))
    assert found.pop("mounts") == [{"destination": "/mine"}, *ENGINES["mounts"]]
    assert found.pop("process") == {**spec["process"], "user": {"uid": 0}}
    assert found == {"linux": ENGINES["linux"]}


def test_what_was_replaced_is_back_in_its_place() -> None:
    engines = copy.deepcopy(ENGINES)
    engines["mounts"].insert(0, {"destination": "/opt", "source": "/mine"})
    engines["process"]["env"].insert(0, "A=1")
    engines["linux"]["devices"] = [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}]
    spec = copy.deepcopy(engines)
    edits.apply(copy.deepcopy([*HOOKED, *FOREIGN[:-2]]), spec)
    assert not any(entry in spec["linux"]["devices"] for entry in engines["linux"]["devices"])
    changed = {**spec, "hostname": "changed"}
    assert json.loads(again.without(text(changed), text(spec), text(engines))) == {**engines, "hostname": "changed"}


def test_it_is_back_behind_the_one_that_it_came_behind() -> None:
    engines = {"mounts": [{"destination": place} for place in ("/a", "/opt", "/b")]}
    spec = copy.deepcopy(engines)
    edits.apply(copy.deepcopy([HOOKED[-1], FOREIGN[2]]), spec)
    changed = {**spec, "mounts": [{"destination": "/mine"}, *spec["mounts"]]}
    found = json.loads(again.without(text(changed), text(spec), text(engines)))
    assert [mount["destination"] for mount in found["mounts"]] == ["/mine", "/a", "/opt", "/b"]


def test_what_the_engine_has_written_again_stays() -> None:
    rewritten = text({**ENGINES, "linux": {"devices": [HOOKED[0].value]}})  # passed by hand
    assert again.without(rewritten, text(created(HOOKED)), text(ENGINES)) is rewritten


CDI_HOOK = {**HOOK, "args": [*HOOK["args"], "--gpu", "0=0000:01:00.0"]}


def test_what_the_engine_has_written_again_by_a_cdi_spec_of_ours_stays() -> None:
    engines = {**copy.deepcopy(ENGINES), "hooks": {"prestart": [CDI_HOOK]}}
    spec = copy.deepcopy(engines)
    edits.apply(copy.deepcopy(HOOKED), spec)
    rewritten = {**copy.deepcopy(engines), "linux": {"devices": [HOOKED[0].value]}, "mounts": [HOOKED[2].value]}
    assert again.without(text(rewritten), text(spec), text(engines)) == text(rewritten)


@pytest.mark.parametrize("saved", [(b"", b""), (b"{}", b"{}"), (b"{", b"{"), (b"[]", b"[]")])
def test_where_nothing_usable_is_kept_nothing_that_a_plan_could_have_written_stays(
    saved: tuple[bytes, bytes],
) -> None:
    engines = {**copy.deepcopy(ENGINES), "mounts": [*ENGINES["mounts"], bind("/usr/bin/x", "ro", "rbind")]}
    engines["linux"]["devices"] = [node("/dev/fuse", 229)]
    engines["linux"]["resources"]["devices"] += [{**OUR_RULE, "access": "rwm", "minor": 229}]
    spec = copy.deepcopy(engines)
    edits.apply(copy.deepcopy(PLANNED), spec)
    wanted = {**engines, "process": {**spec["process"], "user": {"uid": 0}}}
    assert json.loads(again.without(text(spec), *saved)) == wanted


def test_a_node_that_is_passed_by_hand_stays_beside_those_of_a_create() -> None:
    engines = copy.deepcopy(ENGINES)
    engines["linux"]["devices"] = [HOOKED[0].value]
    engines["linux"]["resources"]["devices"].append({**OUR_RULE, "access": "rwm"})
    spec = copy.deepcopy(engines)
    edits.apply(copy.deepcopy(PLANNED), spec)
    assert json.loads(again.without(text(spec), b"", b""))["linux"] == engines["linux"]


def test_without_any_mark_of_a_create_a_node_stays() -> None:
    data = text({**created(PLANNED), "hooks": {"prestart": [CDI_HOOK]}})
    assert again.without(data, b"", b"") is data


def test_a_create_is_known_by_what_it_kept_where_its_hook_is_gone() -> None:
    spec = created(PLANNED)
    changed = {key: value for key, value in spec.items() if key != "hooks"}
    assert json.loads(again.without(text(changed), text(spec), text(ENGINES))) == ENGINES


@pytest.mark.parametrize("minor", [0, 255])
def test_one_rule_of_those_that_a_create_added_is_no_mark_of_it(minor: int) -> None:
    """An engine writes such a rule, too, for a node that is passed by hand with "rw"."""
    kept = created([*PLANNED, edits.Edit("rule", ("c", 195, 255, "rw"))])
    rewritten = copy.deepcopy(ENGINES)
    rewritten["linux"]["resources"]["devices"].append({**OUR_RULE, "minor": minor})
    data = text(rewritten)
    assert again.without(data, text(kept), text(ENGINES)) is data


def test_all_nodes_that_a_plan_may_have_are_known() -> None:
    folders = [folder for folder, _ in nodes.PLACES if folder != "/dev"]
    assert [path for path in (*nodes.EXPECTED, *folders) if not f"{path}/".startswith(NODES)] == []


@pytest.mark.parametrize("odd", [None, 1, "x", [], {}, [1], [{}], [{"major": [], "minor": {}}], [{"args": 1}]])
@pytest.mark.parametrize("path", ["mounts", "linux.devices", "linux.resources.devices", "process", "hooks.prestart"])
def test_odd_types_are_for_others_to_refuse(path: str, odd: Any) -> None:
    spec: dict[str, Any] = {"hooks": {"createRuntime": [HOOKED[-1].value]}}
    *parents, last = path.split(".")
    below = spec
    for name in parents:
        below = below.setdefault(name, {})
    below[last] = odd
    assert "gpushim-hook" not in again.without(text(spec), b"", b"").decode()


@pytest.mark.parametrize("saved", [b"{", b"[]"])
def test_what_is_damaged_counts_for_nothing(saved: bytes) -> None:
    data = text(ENGINES)
    assert again.without(data, saved, saved) is data


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
    HOOKED[-1],
    *FOREIGN,
    edits.Edit("node", node("/dev/nvidia0", 1)),
    edits.Edit("rule", ("c", 195, 1, "rw")),
    edits.Edit("mount", bind(LIBRARY, "ro", "rbind", "rprivate")),
    edits.Edit("mount", {**bind(LIBRARY, "ro", "rbind", "rprivate"), "source": "/of/another/driver"}),
    edits.Edit("set-mount", bind("/data/x", "rbind")),
    edits.Edit("env", ("NVIDIA_VISIBLE_DEVICES", "void")),
    edits.Edit("rdt", {"closID": "d"}),
).map(edits.last_counts)


def create_with(planned: Optional[list[edits.Edit]], bundle: str) -> bool:
    """Create a bundle's container with a plan, or none as nothing is asked for; says whether it was not refused."""
    decision = mock.Mock(ask=lambda _: planned, edits=copy.deepcopy(planned), low_level=lambda: "")
    with mock.patch.multiple(create, Decision=lambda *_: decision, of_bundle=lambda *_: {"rootfs": "/r"}):
        try:
            create.edit("", bundle, "x", 0)
        except GpushimError:
            return False
    return True


def put_in(spec: Any, number: int) -> None:
    """Be somebody who changes a config.json between two creates."""
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
    with tempfile.TemporaryDirectory() as again_, tempfile.TemporaryDirectory() as once:
        for bundle in (again_, once):
            Path(bundle, "config.json").write_bytes(text(spec))
        for planned in hosts:
            create_with(planned, again_)
        served = create_with(last, once)
        assert create_with(last, again_) == served
        found, wanted = (Path(bundle, "config.json").read_bytes() for bundle in (again_, once))
        assert found == wanted or not served


@given(SPECS, PLANS, st.integers(0, 3), PLANS)
def test_so_they_are_with_what_somebody_changes_between(spec: Any, first: Any, change: int, last: Any) -> None:
    with tempfile.TemporaryDirectory() as again_, tempfile.TemporaryDirectory() as once:
        config, lone = Path(again_, "config.json"), Path(once, "config.json")
        config.write_bytes(text(spec))
        create_with(first if first is None else [*first, HOOKED[-1]], again_)
        for path, changed in ((config, json.loads(config.read_bytes())), (lone, spec)):
            put_in(changed, change)
            path.write_bytes(text(changed))
        served = create_with(last, once)
        assert create_with(last, again_) == served
        found, wanted = (json.loads(path.read_bytes()) for path in (config, lone))
        for one in (found, wanted):
            one["process"]["env"].sort()  # no two have the same name
        assert found == wanted or not served
