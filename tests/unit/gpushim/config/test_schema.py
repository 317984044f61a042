"""What edits leave in a config.json is what the OCI runtime specification allows there.

The schema holds the rules of config.md and config-linux.md that the edits touch, and is stricter where runc and
crun are: a device node has its numbers, a hook an environment (see SECURITY.md). What edits never touch, the
schema leaves open.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.decision.plan import plan
from gpushim.ground import fastjson
from gpushim.ground.errors import GpushimError
from gpushim.oci import request
from gpushim.oci.edits import apply
from unit.gpushim.decision.test_plan import BUNDLE, snapshot

DATA = Path(__file__).parents[3] / "data"
CONFIGS = {
    name: json.loads((DATA / f"{name}-config.json").read_text()) for name in ("docker", "docker-privileged", "runc")
}

ID = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
TEXT = {"type": "string", "pattern": r"^[^\0]*$"}  # what goes to the kernel ends at the first NUL
ABSOLUTE = {"type": "string", "pattern": r"^/[^\0]*$"}
VARIABLE = {"type": "string", "pattern": r"^[^=\0]+=[^\0]*$"}  # IEEE Std 1003.1, as config.md says of process.env


def listed(kind: dict[str, Any], **rules: Any) -> dict[str, Any]:
    return {"type": ["array", "null"], "items": kind, **rules}  # Go writes and reads an empty list as null too


def objects(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def nullable(thing: dict[str, Any]) -> dict[str, Any]:
    return {**thing, "type": [thing["type"], "null"]}


def number(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": 2**63 - 1}


NODE = objects(
    ["path", "type"],
    path=ABSOLUTE,
    type={"enum": ["c", "b", "u", "p"]},
    major=number(0),
    minor=number(0),
    fileMode={"type": "integer", "minimum": 0, "maximum": 0o7777 | 0o170000},  # Docker copies st_mode whole
    uid=ID,
    gid=ID,
)
NODE["if"] = {"properties": {"type": {"enum": ["c", "b", "u"]}}}
NODE["then"] = {"required": ["major", "minor"]}  # config-linux.md: required unless it is a FIFO
RULE = objects(
    ["allow"],
    allow={"type": "boolean"},
    type={"enum": ["a", "b", "c"]},
    major=nullable(number(-1)),
    minor=nullable(number(-1)),
    access={"type": "string", "pattern": "^[rwm]{0,3}$"},
)
MOUNT = objects(["destination"], destination=ABSOLUTE, source=TEXT, type=TEXT, options=listed(TEXT))
HOOK = objects(
    ["path"],
    path=ABSOLUTE,
    args=listed(TEXT),
    env=listed(VARIABLE),
    timeout={"type": "integer", "exclusiveMinimum": 0},
)
STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
PROCESS = objects(
    ["cwd", "user"],
    cwd=ABSOLUTE,
    args=listed(TEXT),
    env=listed(VARIABLE),
    user=objects(["uid", "gid"], uid=ID, gid=ID, additionalGids=listed(ID)),
)
LINUX = objects([], devices=listed(NODE), resources=objects([], devices=listed(RULE)))
SCHEMA = objects(
    ["ociVersion"],
    ociVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
    root=objects(["path"], path=TEXT, readonly={"type": "boolean"}),
    process=PROCESS,
    mounts=listed(MOUNT),
    hooks=nullable({"type": "object", "properties": {stage: listed(HOOK) for stage in STAGES}}),
    linux=LINUX,
    annotations=nullable({"type": "object", "additionalProperties": {"type": "string"}}),
)
# Of what the edits bring, more is asked: every member is there, and nothing twice.
OURS = {
    "devices": {**NODE, "required": ["path", "type", "major", "minor", "fileMode", "uid", "gid"]},
    "rules": {**RULE, "required": ["allow", "type", "major", "minor", "access"]},
    "mounts": {**MOUNT, "required": ["destination", "source", "type", "options"]},
    "hooks": {**HOOK, "required": ["path", "args", "env", "timeout"]},
}
OURS["devices"]["properties"] = {
    **NODE["properties"],
    "fileMode": {"type": "integer", "minimum": 0, "maximum": 0o7777},
}
OURS["hooks"]["properties"] = {**HOOK["properties"], "env": listed(VARIABLE, minItems=1)}
CHECK = jsonschema.Draft202012Validator(SCHEMA)
CHECK_OURS = {name: jsonschema.Draft202012Validator(schema) for name, schema in OURS.items()}


def parts(spec: dict[str, Any]) -> dict[str, list[Any]]:
    """The lists that the edits add to."""
    linux = spec.get("linux") or {}
    return {
        "devices": linux.get("devices") or [],
        "rules": (linux.get("resources") or {}).get("devices") or [],
        "mounts": spec.get("mounts") or [],
        "hooks": (spec.get("hooks") or {}).get("prestart") or [],
    }


def edited(spec: dict[str, Any], inventory: Any, **bundle: Any) -> dict[str, Any]:
    """What the low-level runtime reads: edited, written and read again."""
    wanted = request.read(spec, inventory["policy"])
    assert wanted is not None
    result = copy.deepcopy(spec)
    apply(plan(wanted, inventory, BUNDLE | bundle)[0], result)
    parsed: dict[str, Any] = json.loads(fastjson.dumps(result))
    return parsed


def check(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Validate a spec, and more strictly what has come to it."""
    CHECK.validate(after)
    for name, items in parts(after).items():
        added = [item for item in items if item not in parts(before)[name]]
        for item in added:
            CHECK_OURS[name].validate(item)
        assert len({json.dumps(item, sort_keys=True) for item in added}) == len(added)


def asking(name: str, *env: str) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(CONFIGS[name])
    spec["process"]["env"] += env
    spec["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
    return spec


REQUESTS = [
    [f"NVIDIA_VISIBLE_DEVICES={devices}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    for devices in ("0,1", "all", "none", "2:0", "nvidia.com/gpu=0")
    for capabilities in ("", "utility", "all")
]
REQUESTS += [[*env, "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=3"] for env in REQUESTS[2:9:3]]
REQUESTS += [["CUDA_VERSION=8.0", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"]]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("env", REQUESTS, ids=" ".join)
@pytest.mark.parametrize("userns", [False, True])
def test_what_is_written_is_valid(name: str, env: list[str], userns: bool) -> None:
    inventory = snapshot()
    inventory["driver"]["dev-root"] = "/run/driver" if userns else "/"
    inventory["nodes"]["/dev/nvidia1"] = [195, 1, 0o660, 0, 44]
    before = asking(name, *env)
    CHECK.validate(before)
    after = edited(before, inventory, userns=userns)
    assert after != before
    check(before, after)


PLACES: dict[str, list[Any]] = {
    "process.env": ["NVIDIA", "=x", "A\0=b", 1],
    "process.user.additionalGids": [-1, 2**32, "44"],
    "mounts": [{"source": "/a"}, {"destination": "a"}, {"destination": "/a", "options": "ro"}],
    "linux.devices": [
        {"path": "/dev/x", "type": "c", "major": 1},
        {"path": "dev/x", "type": "p"},
        {"path": "/dev/x", "type": "p", "gid": -1},
        {"path": "/dev/x", "type": "p", "fileMode": "0666"},
        {"path": "/dev/x"},
    ],
    "linux.resources.devices": [{"access": "rw"}, {"allow": True, "access": "rx"}, {"allow": 1}],
    "hooks.prestart": [{"path": "hook"}, {"args": []}, {"path": "/x", "timeout": 0}, {"path": "/x", "env": ["A"]}],
}


@pytest.mark.parametrize(("place", "wrong"), [(place, wrong) for place in PLACES for wrong in PLACES[place]])
def test_the_schema_finds_what_is_wrong(place: str, wrong: object) -> None:
    spec = edited(asking("docker", "NVIDIA_VISIBLE_DEVICES=0"), snapshot())
    *parents, last = place.split(".")
    where = spec
    for name in parents:
        where = where[name]
    where[last] = [*(where.get(last) or []), wrong]
    with pytest.raises(jsonschema.ValidationError):
        CHECK.validate(spec)


some = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)
paths = some.map(lambda text: "/" + text)
variables = st.builds("{}={}".format, some.map(lambda text: text.replace("=", "") or "A"), some)
ids = st.integers(0, 2**32 - 1)
nodes = st.builds(
    lambda path, major, minor: {"path": path, "type": "c", "major": major, "minor": minor},
    paths | st.just("/dev/nvidia1"), st.just(195) | st.integers(0, 600), st.just(1) | st.integers(0, 300),
)  # fmt: skip
rules = st.fixed_dictionaries(
    {"allow": st.booleans()},
    optional={
        "type": st.sampled_from(["a", "b", "c"]),
        "major": st.none() | st.integers(-1, 600),
        "minor": st.none() | st.integers(-1, 300),
        "access": st.sampled_from(["", "r", "rw", "rwm", "m"]),
    },
)
mounts = st.fixed_dictionaries(
    {"destination": paths | st.sampled_from(["/usr/bin/nvidia-smi", "/usr/lib/libcuda.so.5", "/dev"])},
    optional={"source": some, "type": some, "options": st.none() | st.lists(some, max_size=2)},
)
hooks = st.fixed_dictionaries(
    {"path": paths | st.sampled_from(["/usr/bin/gpushim-hook", "/x/nvidia-container-runtime-hook"])},
    optional={"args": st.lists(some, max_size=2), "env": st.lists(variables, max_size=2), "timeout": st.integers(1)},
)


def maybe(things: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(things, max_size=3)


users = st.fixed_dictionaries({"uid": ids, "gid": ids}, optional={"additionalGids": maybe(ids)})
processes = st.fixed_dictionaries({"cwd": paths, "env": st.lists(variables, max_size=3), "user": users})
resources = st.fixed_dictionaries({}, optional={"devices": maybe(rules)})
specs = st.fixed_dictionaries(
    {"ociVersion": st.just("1.0.2"), "process": processes},
    optional={
        "mounts": maybe(mounts),
        "hooks": st.none() | st.dictionaries(st.sampled_from(STAGES), maybe(hooks), max_size=3),
        "linux": st.fixed_dictionaries({}, optional={"devices": maybe(nodes), "resources": resources}),
    },
)


@given(spec=specs, env=st.sampled_from(REQUESTS), mode=st.sampled_from([0o666, 0o660, 0o600]), userns=st.booleans())
def test_what_is_written_into_any_spec_is_valid(spec: Any, env: list[str], mode: int, userns: bool) -> None:
    CHECK.validate(spec)
    spec["process"]["env"] += env
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    inventory = snapshot()
    inventory["nodes"]["/dev/nvidia1"] = [195, 1, mode, 0, 44]
    try:
        after = edited(spec, inventory, userns=userns)
    except GpushimError as error:
        refused = str(error)
    else:
        check(spec, after)
        return
    assert "already has /dev/nvidia1" in refused
