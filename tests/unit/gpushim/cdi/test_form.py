from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushim.cdi import form, specs

GOOD: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "vendor.com/device",
    "annotations": {"x": "y"},
    "devices": [
        {
            "name": "a",
            "annotations": {"x-thing": "1"},
            "containerEdits": {
                "env": ["A=1", "B="],
                "deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/null", "permissions": "rw", "fileMode": 438}],
                "mounts": [{"hostPath": "tmpfs", "containerPath": "/t", "type": "tmpfs", "options": ["size=1k"]}],
                "hooks": [
                    {"hookName": "createContainer", "path": "/bin/x", "args": ["x"], "env": ["A=b"], "timeout": 1}
                ],
                "additionalGids": [1],
                "intelRdt": {"closID": "c", "enableCMT": True, "schemata": ["L3:0=f"]},
            },
        },
        {"name": "0", "containerEdits": None},
    ],
    "containerEdits": {"netDevices": [{"hostInterfaceName": "eth1", "name": "eth0"}]},
}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    where: Any = document
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    return document


EDITS = ("devices", 0, "containerEdits")
NODE, MOUNT, HOOK = (*EDITS, "deviceNodes", 0), (*EDITS, "mounts", 0), (*EDITS, "hooks", 0)


@pytest.mark.parametrize(
    "document",
    [
        GOOD,
        *[changed("cdiVersion", value=version) for version in ("0.3.0", "0.8.0", "1.0.0", "1.1.0", "1.1.1")],
        changed("kind", value="a/b"),
        changed("devices", 1, value={"name": "x:y_z.1"}),
        changed("containerEdits", value=None),
        changed(*NODE, "permissions", value=""),
        changed(*NODE, "type", value="p"),
        changed(*MOUNT, value={"hostPath": "/a", "containerPath": "/b"}),
    ],
)
def test_a_good_form(document: Any) -> None:
    form.check(document)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("cdiVersion",), "1.2.0", "it has the cdiVersion"),
        (("cdiVersion",), "v0.5.0", "it has the cdiVersion"),
        (("cdiVersion",), "0.5", "it has the cdiVersion"),
        (("cdiVersion",), 0.5, "cdiVersion is not a string"),
        (("cdiVersion",), None, "it has no cdiVersion"),
        (("kind",), "vendor", "which is not vendor/class"),
        (("kind",), "1/b", "which is not vendor/class"),
        (("devices",), {}, "devices is not a list"),
        (("devices",), None, "it has no devices"),
        (("devices", 0), "a", "devices[0] is not an object"),
        (("devices", 0, "name"), None, "devices[0] has no name"),
        (("devices", 0, "name"), "-a", 'a device named "-a"'),
        (("devices", 0, "name"), "0", "two devices of the same name"),
        (("devices", 0, "name"), 5, "devices[0].name is not a string"),
        ((*EDITS, "env", 0), "A=\ud800", "not NAME=value"),
        (("devices", 0, "nodes"), [], 'devices[0] has "nodes", which is unknown here'),
        (("extra",), None, 'it has "extra"'),
        ((*EDITS, "env", 1), "B", 'devices[0].containerEdits.env[1] is "B", not NAME=value'),
        ((*EDITS, "env", 0), "=B", "not NAME=value"),
        ((*EDITS, "env", 0), None, "env[0] is"),
        ((*NODE, "path"), "dev/a", 'deviceNodes[0].path is "dev/a", which is not an absolute path'),
        ((*NODE, "path"), None, "deviceNodes[0] has no path"),
        ((*NODE, "path"), "/a\0b", "not an absolute path"),
        ((*NODE, "type"), "a", 'is "a", not one of b, c, u, p'),
        ((*NODE, "type"), [], "not one of"),
        ((*NODE, "major"), -1, "is not a number"),
        ((*NODE, "major"), True, "is not a number"),
        ((*NODE, "major"), 1.5, "is not a number"),
        ((*NODE, "permissions"), "rx", "letters r, w and m"),
        ((*NODE, "uid"), 2**32, "is not a number"),
        ((*MOUNT, "type"), None, 'mounts[0] has the hostPath "tmpfs"'),
        ((*MOUNT, "containerPath"), "t", "is not an absolute path"),
        ((*MOUNT, "hostPath"), "", "has no hostPath"),
        ((*MOUNT, "options"), "ro", "options is not a list"),
        ((*HOOK, "hookName"), "start", 'hookName is "start", not one of prestart'),
        ((*HOOK, "path"), "x", "is not an absolute path"),
        ((*HOOK, "timeout"), "1", "is not a number"),
        ((*HOOK, "env", 0), "x", "not NAME=value"),
        ((*EDITS, "additionalGids", 0), "1", "is not a number"),
        ((*EDITS, "intelRdt", "enableCMT"), "yes", "is neither true nor false"),
        ((*EDITS, "intelRdt", "x"), 1, "is unknown here"),
        (("annotations",), [], "annotations is not an object"),
    ],
)
def test_a_bad_form_is_named(path: tuple[Any, ...], value: Any, complaint: str) -> None:
    with pytest.raises(form.FormError) as caught:
        form.check(changed(*path, value=value))
    assert complaint in str(caught.value)


KEYS = st.sampled_from([*form._SPEC, *form._EDITS, *form._NODE, *form._HOOK, *form._RDT, "name", "options", "x"])
TEXTS = st.sampled_from(["", "/", "/dev/null", "v/c", "a", "0.5.0", "1.1.0", "A=1", "rw", "c", "\0"]) | st.text(
    max_size=8
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5))
PLACES = st.sampled_from(
    [("devices", 0), (*EDITS,), (*EDITS, "env"), NODE, (*NODE, "path"), MOUNT, (*MOUNT, "hostPath"), HOOK, ("kind",)]
)


def trouble(name: str, data: bytes) -> str:
    """Return why a file is no spec, or ""; any other exception is a failure of the test."""
    try:
        specs._parse(name, data)
    except form.FormError as error:
        return str(error)
    return ""


@settings(max_examples=300)
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"\xef\xbb\xbf{}")
def test_any_document_is_good_or_has_a_reason(data: bytes) -> None:
    for name in ("x.json", "x.yaml"):
        assert trouble(name, data) != "it "


@settings(max_examples=300)
@given(PLACES, JSON)
def test_any_value_in_any_place_is_good_or_has_a_reason(place: tuple[Any, ...], value: Any) -> None:
    assert trouble("x.json", json.dumps(changed(*place, value=value)).encode()) != "it "
