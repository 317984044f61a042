"""What is said of claims, held against a real API server and scheduler: which devices match, and what fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e import claimforms, claims, scheduled
from e2e.apiserver import Api
from gpuplugin.dra import claim_answer, explain_file, explain_held
from gpuplugin.dra.node_state import NodeState
from gpuplugin.dra.offered import devices
from gpuplugin.matching import cel, manifests
from gpuplugin.matching.cel_values import FailsError
from gpuplugin.matching.manifests import Class
from unit.gpuplugin.snapshots import gpu, mig, snapshot

A = "device.attributes['gpu.nvidia.com']"
C = "device.capacity['gpu.nvidia.com']"
R = "device.attributes['resource.kubernetes.io']"
HOST = snapshot(
    [gpu(0), gpu(1, model="NVIDIA H100 PCIe", memory=81920, arch="9.0"), gpu(2, numa=-1), gpu(3, mig=True)],
    [mig(3, 0), mig(3, 1, "3g.20gb")],
)
DEVICES = devices(HOST)
FILE = manifests.File((), {**claim_answer.CLASSES, "any": Class(())}, ())
# What is known here: each ends as it is said to.
KNOWN = [
    "device.driver == 'gpu.nvidia.com'",
    f"device.driver == 'gpu.nvidia.com' && {A}.type == 'gpu'",
    f'{A}.type == "mig"',
    f"{A}.productName.lowerAscii().matches('^.*a100.*$')",
    f"{A}.productName.matches('H[0-9]+ ')",
    f"{A}.productName.matches('A100$')",
    f"{A}.productName.startsWith('NVIDIA H')",
    f"{A}.productName.endsWith('40GB') || {A}.type == 'mig'",
    f"{A}.productName.upperAscii().contains('PCIE')",
    f"!({A}.productName.contains('H100'))",
    f"!{A}.migEnabled",
    f"{A}.migEnabled",
    f"!!{A}.migEnabled",
    f"{A}.migEnabled == false",
    f"{A}.numaNode == -1",
    f"{A}.numaNode > 0",
    f"{A}.numaNode <= 0 && {A}.numaNode >= 0",
    f"{A}.numaNode < 1",
    f"{A}.numaNode != 0",
    f"{A}.numaNode in [0, 1]",
    f"{A}.numaNode == 'x'",
    f"{A}.profile in ['1g.5gb', '7g.40gb']",
    f"{A}.profile != 'none'",
    f"'mig' in [{A}.type, {A}.profile]",
    f"{C}.memory.compareTo(quantity('40Gi')) >= 0",
    f"{C}.memory.compareTo(quantity('40Gi')) == 1",
    f"{C}.memory.isLessThan(quantity('5G'))",
    f"{C}.memory.isGreaterThan(quantity('42949672959'))",
    f"{C}.memory == quantity('80Gi')",
    f"{C}['memory'] != quantity('40960Mi')",
    f"{C}.multiprocessors.compareTo(quantity('14')) == 0",
    "quantity('1.5') == quantity('1500m')",
    f"{A}.cudaComputeCapability.compareTo(semver('9.0.0')) >= 0",
    f"{A}.driverVersion.isGreaterThan(semver('535.0.0'))",
    f"{A}.driverVersion.isLessThan(semver('580.65.7'))",
    f"{A}.driverVersion == semver('580.65.6')",
    f"{A}.driverVersion == '580.65.6'",
    f"'580.65.6' == {A}.driverVersion",
    f"{A}.driverVersion in [semver('1.2.3'), semver('580.65.6')]",
    f"{A}.driverVersion in ['580.65.6']",
    f"'580.65.6' in [{A}.driverVersion]",
    f"{A}.driverVersion == {A}.type",
    f"{A}.type == {A}.driverVersion",
    f"{A}.driverVersion == null",
    f"{A}.type == null",
    f"{C}.memory == {A}.type",
    f"{A}.type == {C}.memory",
    f"{R}.pcieRoot == {A}.uuid",
    f"{R}.pciBusID.startsWith('0000:11')",
    "device.attributes['resource.kubernetes.io'].pciBusID == '0000:10:00.0'",
    "device.attributes['gpu.nvidia.com']['type'] == 'gpu'",
    f"'type' in {A}",
    f"'nothing' in {A}",
    f"'memory' in {C}",
    "'gpu.nvidia.com' in device.attributes",
    "'example.com' in device.attributes",
    f"has({A}.type)",
    f"has({A}.nothing)",
    "has(device.attributes['example.com'].x)",
    f"has({A}.nothing) && {A}.nothing == 'x'",
    f"{A}.nothing == 'x'",
    "device.attributes['example.com'].x == 'x'",
    f"{C}.nothing == quantity('1')",
    f"{A}.nothing == 'x' || {A}.type == 'gpu'",
    f"{A}.type == 'gpu' || {A}.nothing == 'x'",
    f"{A}.nothing == 'x' && {A}.type == 'none'",
    f"{A}.nothing == 'x' || true",
    f"false && {A}.nothing == 'x'",
    f"{A}.type == 'gpu' && {A}.nothing == 'x'",
    f"{A}.type && true",
    f"{A}.type && false",
    f"!{A}.type",
    f"{A}.type",
    f"{A}.type < 'h'",
    f"{A}.type < 5",
    f"{A}.migEnabled > 5",
    f"{A}.numaNode.startsWith('x')",
    f"{A}.type.startsWith({A}.numaNode)",
    f"{A}.type.compareTo(semver('1.0.0')) == 0",
    f"{A}.driverVersion.compareTo({C}.memory) == 0",
    f"{A}.?type.orValue('none') == 'gpu'",
    f"{A}.?nothing.orValue('none') == 'none'",
    f"{C}.?memory.orValue(quantity('0')).compareTo(quantity('40Gi')) > 0",
    f"cel.bind(a, {A}, a.type == 'gpu' && a.numaNode == 0)",
    f"cel.bind(m, {C}.memory, m.isLessThan(quantity('1Gi')) || m.isGreaterThan(quantity('50Gi')))",
    "true",
    "false",
    " true // a comment",
    f"({A}.type == 'gpu') == true",
    f"!{A}.migEnabled == true",
    f"{A}.type == 'gpu' && {A}.numaNode == 0 || {A}.type == 'mig'",
    f"{A}.type == 'mig' || {A}.type == 'gpu' && {A}.numaNode == 0",
]
TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
TAINTED = DEVICES[2]
LARGE = {"cel": {"expression": f"{C}.memory.compareTo(quantity('60Gi')) > 0"}}
PARENT = "gpu.nvidia.com/parentUUID"
# Requests of claims, and more of their specification; all of them only look, so that none holds anything.
LOOKING: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([claims.request()], {}),
    ([claims.request(count=2)], {}),
    ([claims.request(count=3)], {}),
    ([claims.request(count=3, tolerations=[{"key": TAINT["key"], "value": "79"}])], {}),
    ([claims.request(count=3, tolerations=[{"key": TAINT["key"], "value": "31"}])], {}),
    ([claims.request(count=3, tolerations=[{"operator": "Exists", "effect": "NoSchedule"}])], {}),
    ([claims.request(count=3, tolerations=[{"operator": "Exists", "effect": "NoExecute"}])], {}),
    ([claims.request(count=3, tolerations=[{"key": TAINT["key"]}])], {}),
    ([claims.request(allocationMode="All")], {}),
    ([claims.request(allocationMode="All", tolerations=[{"operator": "Exists"}])], {}),
    ([claims.request(allocationMode="All", selectors=[LARGE])], {}),
    ([claims.request(count=2, selectors=[LARGE])], {}),
    ([claims.request("a"), claims.request("b"), claims.request("c", "mig.nvidia.com")], {}),
    ([claims.request("a", selectors=[LARGE]), claims.request("b", selectors=[LARGE])], {}),
    ([claims.request("a", count=2, device_class="mig.nvidia.com")], {"constraints": [{"matchAttribute": PARENT}]}),
    ([claims.request("a", count=2)], {"constraints": [{"matchAttribute": PARENT}]}),
    ([claims.request("a", count=2)], {"constraints": [{"matchAttribute": "gpu.nvidia.com/type"}]}),
    ([claims.request("a", count=2)], {"constraints": [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]}),
    ([claims.request("a", count=2)], {"constraints": [{"matchAttribute": "example.com/x"}]}),
    ([claims.request("a", count=2)], {"constraints": [{"distinctAttribute": PARENT}]}),
    ([claims.request("a", count=2)], {"constraints": [{"distinctAttribute": "gpu.nvidia.com/type"}]}),
    *(
        ([claims.request("a", count=2)], {"constraints": [{"matchAttribute": one, "distinctAttribute": other}]})
        for one, other in (("gpu.nvidia.com/type", "gpu.nvidia.com/type"), (PARENT, PARENT))
    ),
    (
        [claims.request("a"), claims.request("b"), claims.request("m", "mig.nvidia.com")],
        {"constraints": [{"matchAttribute": PARENT, "requests": ["a", "m"]}]},
    ),
    (
        [claims.request("a"), claims.request("b"), claims.request("m", "mig.nvidia.com")],
        {"constraints": [{"matchAttribute": "gpu.nvidia.com/productName", "requests": ["a", "m"]}]},
    ),
    ([claims.request(selectors=[{"cel": {"expression": f"{A}.nothing == 'x'"}}])], {}),
    ([claims.request(device_class="any", selectors=[LARGE])], {}),
]
WHOLE, PART = ({"name": type_, "deviceClassName": f"{type_}.nvidia.com"} for type_ in ("gpu", "mig"))
# Configs of the first of those, of an alternative that is not chosen and of one that is.
NOT_CHOSEN, CHOSEN = (
    {"requests": [name], "opaque": {"driver": driver, "parameters": {"kind": "x"}}}
    for name, driver in (("a/gpu", claims.DRIVER), ("a/one", "x.y"))
)
# Requests of claims that hold what they get, one after the other: GPU, GPU or MIG instance.
HOLDING: list[list[dict[str, Any]]] = [
    [{"name": "a", "firstAvailable": [{**WHOLE, "count": 3}, {**WHOLE, "name": "one", "selectors": [LARGE]}]}],
    [{"name": "a", "firstAvailable": [{**WHOLE, "selectors": [LARGE]}, PART]}],
    [claims.request("a"), claims.request("b", "mig.nvidia.com", allocationMode="All")],
    [claims.request("a")],
    [{"name": "a", "firstAvailable": [WHOLE, PART]}],
    [{"name": "a", "firstAvailable": [WHOLE, PART]}],
]


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    bodies = [{**one.body, "taints": [TAINT]} if one is TAINTED else one.body for one in DEVICES]
    with scheduled.scheduler(bodies, *(device_class(name, one) for name, one in FILE.classes.items())) as found:
        yield found


def device_class(name: str, found: Class) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in found.selectors]
    spec = {"selectors": selectors} if selectors else {}
    return {"apiVersion": claims.VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def here(text: str) -> tuple[set[str], bool]:
    """Say which devices match, and whether evaluation fails for one."""
    found, failed = set(), False
    for one in DEVICES:
        try:
            if cel.matches(text, claims.DRIVER, one.body)[0]:
                found.add(f"r={one.name}")
        except FailsError:
            failed = True
    return found, failed


def test_selectors(server: Api) -> None:
    """Each is a claim that looks at all devices that match."""
    every = {"allocationMode": "All", "adminAccess": True, "tolerations": [{"operator": "Exists"}]}
    asked = {f"s{number}": text for number, text in enumerate(KNOWN)}
    found = scheduled.outcomes(
        server,
        [
            claims.claim(name, claims.request("r", "any", selectors=[{"cel": {"expression": text}}], **every))
            for name, text in asked.items()
        ],
    )
    for name, text in asked.items():
        matching, failed = here(text)
        got = found[name]
        if failed:
            assert "CEL runtime error" in got, (text, got)
        else:
            assert (set(got) if isinstance(got, list) else set()) == matching, (text, got)
            assert isinstance(got, list) or "cannot allocate all claims" in got, (text, got)


def answered(claim: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    """Say how a claim fares, as the command says it."""
    taints = {TAINTED.uuid: [TAINT]}
    node = NodeState(HOST, DEVICES, {}, taints, {}, held, None, [])
    (found,) = explain_file.report(manifests.read([claim])._replace(classes=FILE.classes), node)["claims"]
    return dict(found)


def test_claims(server: Api) -> None:
    """Those that look, all at once."""
    asked = []
    for number, (requests, more) in enumerate(LOOKING):
        admin = [{**one, "exactly": {**one["exactly"], "adminAccess": True}} for one in requests]
        asked.append(claims.claim(f"c{number}", *admin, **more))
    found = scheduled.outcomes(server, asked)
    for one in asked:
        got = found[one["metadata"]["name"]]
        assert (answered(one, {})["answer"] == "yes") == isinstance(got, list), (one, got)


def test_claims_that_the_api_server_refuses(server: Api) -> None:
    for number, (requests, more) in enumerate(claimforms.REFUSED):
        one = claims.claim(f"i{number}", *requests, **more)
        done = server.kubectl("create", "--filename=-", f"--namespace={scheduled.SPACE}", objects=[one])
        assert done.returncode, one
        assert answered(one, {})["why"].startswith("the API server refuses it: "), (one, done.stderr)


@pytest.mark.parametrize(("forms", "taken"), [(claimforms.ODD, False), (claimforms.TAKEN, True)])
def test_what_is_around_a_specification(server: Api, forms: list[dict[str, Any]], taken: bool) -> None:
    for more in forms:
        one = {**claims.claim("around"), **more}
        done = server.kubectl("create", "--filename=-", f"--namespace={scheduled.SPACE}", objects=[one])
        assert (done.returncode == 0) is taken, (one, done.stderr)
        refused = answered(one, {})["why"].startswith("the API server refuses it: ")
        assert refused is not taken, (one, done.stderr)


def test_claims_that_the_api_server_takes(server: Api) -> None:
    for number, (requests, more) in enumerate(claimforms.MOST):
        one = claims.claim(f"m{number}", *requests, **more)
        done = server.kubectl("create", "--filename=-", f"--namespace={scheduled.SPACE}", objects=[one])
        assert not done.returncode, (one, done.stderr)
        assert not answered(one, {})["why"].startswith("the API server"), one


def test_the_api_server_has_one_version_by_default(server: Api) -> None:
    for version in manifests.VERSIONS:
        one = {**claims.claim("v"), "apiVersion": version}
        done = server.kubectl("create", "--filename=-", f"--namespace={scheduled.SPACE}", objects=[one])
        assert bool(done.returncode) is bool(manifests.read([one]).notes), done.stderr


def test_claims_that_hold_devices(server: Api) -> None:
    held: dict[str, Any] = {}
    names = {one.name: one.uuid for one in DEVICES}
    answers = []
    for number, requests in enumerate(HOLDING):
        claim = claims.claim(f"h{number}", *requests, config=[] if number else [NOT_CHOSEN, CHOSEN])
        answers.append(answered(claim, held)["answer"])
        got = scheduled.outcomes(server, [claim])[f"h{number}"]
        assert (answers[-1] == "yes") == isinstance(got, list), (claim, got)
        rows = [row.partition("=")[2] for row in got] if isinstance(got, list) else []
        devices = [{"request": "a", "device": name, "uuid": names[name], "admin": False} for name in rows]
        held[str(number)] = {"namespace": "d", "name": f"h{number}", "devices": devices}
    assert answers == ["yes", "yes", "not now", "yes", "yes", "not now"]
    line = explain_held.kubectl(scheduled.SPACE, "h0")  # that messages name
    done = server.kubectl(*line.split()[1:])
    assert f"pool: {scheduled.POOL}" in done.stdout, done.stderr
    (config,) = yaml.safe_load(done.stdout)["status"]["allocation"]["devices"]["config"]
    assert config["opaque"]["driver"] == "x.y"  # of 1.37 on without requests, where it is for all
