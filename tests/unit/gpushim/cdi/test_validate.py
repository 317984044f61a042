from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.cdi import form, validate
from unit.gpushim.cdi import hosts


def spec(**changes: Any) -> Any:
    return hosts.foreign(**changes)


def edits(**members: Any) -> Any:
    """A spec whose one device has these edits."""
    return spec(devices=[{"name": "a", "containerEdits": members}], cdiVersion="0.5.0")


def hook(**changes: Any) -> dict[str, Any]:
    return {"hookName": "prestart", "path": "/x", "env": ["A=b"], **changes}


def test_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(validate.schema())


def test_good_spec_has_no_findings() -> None:
    assert validate.findings(spec()) == []


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "the spec: [] is not of type 'object'"),
        ({}, "the spec: 'cdiVersion' is a required property"),
        (spec(more=1), "Additional properties are not allowed ('more' was unexpected)"),
        (spec(devices=[]), "devices: "),
        (spec(devices=[{"name": "a"}]), "devices[0]: 'containerEdits' is a required property"),
        (edits(envs=["A=b"]), "devices[0].containerEdits: Additional properties"),
        (
            edits(deviceNodes=[{"hostPath": "/dev/x"}]),
            "devices[0].containerEdits.deviceNodes[0]: 'path' is a required",
        ),
        (edits(deviceNodes=[{"path": "/dev/x", "type": "char"}]), "deviceNodes[0].type: 'char' is not one of"),
        (edits(deviceNodes=[{"path": "/dev/x", "permissions": "rx"}]), "deviceNodes[0].permissions"),
        (edits(deviceNodes=[{"path": "/dev/x", "major": -1}]), "deviceNodes[0].major"),
        (edits(mounts=[{"hostPath": "/x"}]), "mounts[0]: 'containerPath' is a required"),
        (edits(mounts=[{"hostPath": "/x", "containerPath": "/x", "options": "ro"}]), "mounts[0].options"),
        (edits(hooks=[hook(hookName="preStart")]), "hooks[0].hookName: 'preStart' is not one of"),
        (edits(hooks=[hook(timeout=0)]), "hooks[0].timeout"),
        (edits(additionalGids=[2**32]), "additionalGids[0]"),
        (edits(mounts=[{"hostPath": "/x\ud800", "containerPath": "/x"}]), "hostPath is not a string"),
        # Of a form that the schema allows.
        (spec(cdiVersion="2.0.0"), 'cdiVersion "2.0.0" is none of 0.3.0'),
        (spec(cdiVersion="0.4.0"), "cdiVersion is 0.4.0, but a device name without a letter at its beginning needs"),
        (edits(additionalGids=[44]), "cdiVersion is 0.5.0, but additionalGids needs at least 0.7.0"),
        (edits(intelRdt={"schemata": ["MB:0=10"]}), "intelRdt's schemata needs at least 1.1.0"),
        (edits(netDevices=[{"hostInterfaceName": "a", "name": "b"}]), "netDevices needs at least 1.1.0"),
        (spec(annotations={"a": "b"}), "annotations needs at least 0.6.0"),
        (spec(kind="vendor.com/x.y"), "a class with a dot needs at least 0.6.0"),
        (spec(kind="vendor.com"), 'has the kind "vendor.com", which is not vendor/class'),
        (spec(kind="vendor.com/x/y"), 'has the kind "vendor.com/x/y", which is not vendor/class'),
        (
            spec(devices=[{"name": "a b", "containerEdits": {"env": ["A=b"]}}]),
            'a device named "a b", which',
        ),
        (spec(devices=2 * [{"name": "a", "containerEdits": {"env": ["A=b"]}}]), "has two devices of the same name"),
        (edits(), 'device "a": it edits nothing'),
        (edits(env=[]), 'device "a": it edits nothing'),
        (edits(env=["=b"]), "devices[0].containerEdits.env[0]: '=b' is not NAME=value"),
        (edits(deviceNodes=[{"path": "dev/x"}]), "deviceNodes[0].path: 'dev/x' is not an absolute path"),
        (
            edits(mounts=[{"hostPath": "x", "containerPath": "/x"}]),
            "mounts[0].hostPath: 'x' is not an absolute path",
        ),
        (edits(hooks=[hook(path="x")]), "hooks[0].path: 'x' is not an absolute path"),
        (edits(hooks=[hook(env=["A"])]), "hooks[0].env[0]: 'A' is not NAME=value"),
    ],
)
def test_wrong_form_is_an_error(document: Any, says: str) -> None:
    found = validate.findings(document)
    assert any(level == validate.ERROR and says in sentence for level, sentence in found), found


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (spec(cdiVersion="0.7.0"), "cdiVersion is 0.7.0, but 0.5.0 would do"),
        (spec(kind="v/" + 64 * "x"), "kind is longer than"),
        (edits(hooks=[hook(env=[])]), "CVE-2025-23266"),
        (edits(deviceNodes=2 * [{"path": "/dev/x"}]), "deviceNodes has /dev/x more than once"),
        (edits(mounts=2 * [{"hostPath": "/x", "containerPath": "/x"}]), "mounts has /x more than once"),
        ({**edits(additionalGids=[0]), "cdiVersion": "0.7.0"}, "additionalGids has 0"),
    ],
)
def test_what_is_only_unwise_is_a_warning(document: Any, says: str) -> None:
    found = [finding for finding in validate.findings(document) if "would do" not in finding[1] or "would do" in says]
    assert [(level, says in sentence) for level, sentence in found] == [(validate.WARNING, True)], found


def test_mount_that_is_no_bind_needs_no_path_on_the_host() -> None:
    mount = {"hostPath": "tmpfs", "containerPath": "/x", "type": "tmpfs"}
    assert [level for level, _ in validate.findings(edits(mounts=[mount]))] == [validate.WARNING]  # 0.4.0 would do


KEYS = st.sampled_from(["cdiVersion", "kind", "devices", "name", "containerEdits", "env", "hooks", "mounts", "path"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["0.5.0", "v/c", "A=b", "/x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN, st.sampled_from(["devices", "containerEdits", "annotations", "kind", "cdiVersion"]))
def test_any_document_is_answered_and_what_is_good_here_is_usable(document: Any, key: str) -> None:
    for candidate in (document, spec(**{key: document})):
        found = validate.findings(candidate)
        if not any(level == validate.ERROR for level, _ in found):
            form.check(candidate)
