"""Claims, templates, classes and pods of a file, as the API server takes them, or why it refuses them; what is not
known here is said.

Each is read field by field: one that is not known here could change what it means.
Pure. Out of scope: which devices match (verdicts.py), opaque configs (gpuplugin.dra.configs).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.matching import pod_claims, tolerations
from gpuplugin.matching.fields import LABELLING, MOST, Form
from gpuplugin.matching.pod_claims import CLAIM, TEMPLATE
from gpuplugin.settings.forms import ALIKE, find_meant, show
from gpushim.ground.errors import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

API = "resource.k8s.io/"
SERVED, INLINE = f"{API}v1", f"{API}v1beta1"  # by default; in which a request is not below `exactly`
VERSIONS = (SERVED, f"{API}v1beta2", INLINE)  # whose forms are known here
CLASS, POD = "DeviceClass", "Pod"
EXACT, ALL = "ExactCount", "All"
ALTERNATIVES = 8  # of a request (resource.k8s.io/v1, FirstAvailableDeviceRequestMaxSize)
_WHOLE = ("apiVersion", "kind", "metadata", "spec", "status")  # in whatever version
_DEVICES = ("deviceClassName", "selectors", "allocationMode", "count", "tolerations")


class Request(NamedTuple):
    """A request, or an alternative of one.

    Attributes:
        name: such as gpu; of an alternative gpu/small.
        device_class: its name.
        selectors: expressions.
        mode: EXACT or ALL.
        number: of EXACT.
        admin: it only looks.
        tolerations: of taints.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...]
    mode: str
    number: int
    admin: bool
    tolerations: tuple[Mapping[str, Any], ...]


class Constraint(NamedTuple):
    """That devices have the same value of an attribute, or each another one; of these requests, or of all."""

    attribute: str
    distinct: bool
    requests: tuple[str, ...]


class ClaimSpec(NamedTuple):
    """A claim, or what a template makes claims of.

    Attributes:
        kind: CLAIM or TEMPLATE.
        namespace: "" where the file does not say.
        name: of it.
        requests: the alternatives of each, the first that is possible counts.
        constraints: of all.
        configs: as in status.allocation.devices.config.
        unsure: what is not known here, clauses.
        wrong: what the API server refuses, clauses.
    """

    kind: str
    namespace: str
    name: str
    requests: tuple[tuple[Request, ...], ...]
    constraints: tuple[Constraint, ...]
    configs: tuple[Mapping[str, Any], ...]
    unsure: tuple[str, ...]
    wrong: tuple[str, ...] = ()


class Class(NamedTuple):
    """A DeviceClass: expressions, configs, and what is not known here."""

    selectors: tuple[str, ...]
    configs: tuple[Mapping[str, Any], ...] = ()
    unsure: tuple[str, ...] = ()


class File(NamedTuple):
    """What a file has; `notes` are sentences about the rest."""

    claims: tuple[ClaimSpec, ...]
    classes: Mapping[str, Class]
    notes: tuple[str, ...]


def read(documents: Sequence[Any]) -> File:
    """Read a file.

    Args:
        documents: of its YAML.
    """
    claims: list[ClaimSpec] = []
    classes: dict[str, Class] = {}
    pods: list[Mapping[str, Any]] = []
    notes: list[str] = []
    for one in _flat(documents):
        kind, version = str(one.get("kind")), str(one.get("apiVersion"))
        if kind in (CLAIM, TEMPLATE, CLASS) and version in VERSIONS[1:]:
            inside = ", with `exactly:` around what a request asks for" * (version == INLINE and kind != CLASS)
            notes.append(
                f"{kind} {_metadata(one, 'name')}: API servers have {version} only where it was switched on; write "
                f"{SERVED}{inside}"
            )
        if kind in (CLAIM, TEMPLATE) and version.startswith(API):
            claims.append(_claim(one, kind, version))
        elif kind == CLASS and version.startswith(API):
            form = Form()
            known = ("selectors", "config", "extendedResourceName")
            spec = form.object(one.get("spec"), "spec", known)
            found = form.selectors(spec.get("selectors"), "spec.selectors")
            configs = tuple(
                form.object(row, "spec.config") for row in form.list(spec.get("config"), "spec.config", MOST)
            )
            classes[_metadata(one, "name")] = Class(found, configs, (*form.wrong, *form.unsure))
        elif kind == POD:
            pods.append(one)
        else:
            right = find_meant(kind, (CLAIM, TEMPLATE), ALIKE)
            more = f"; write kind: {right} and apiVersion: {SERVED}" if right else ""
            notes.append(f"{kind} {_metadata(one, 'name')} of {version} is not looked at{more}")
    kinds: dict[str, list[str]] = {}
    for each in claims:
        kinds.setdefault(each.name, []).append(each.kind)
    notes += [note for pod in pods for note in pod_claims.notes(pod, kinds)]
    return File(tuple(claims), classes, tuple(notes))


def _flat(documents: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of documents, those of lists too."""
    for one in documents:
        if isinstance(one, dict):
            items = one.get("items")
            yield from _flat(items) if isinstance(items, list) and str(one.get("kind")).endswith("List") else [one]


def _metadata(one: Mapping[str, Any], key: str) -> str:
    found = one.get("metadata")
    return str(found.get(key) or "") if isinstance(found, dict) else ""


def _claim(one: Mapping[str, Any], kind: str, version: str) -> ClaimSpec:
    form = Form()
    form.wrong += [f"a {kind} has no field {quote(str(key))}" for key in one if key not in _WHOLE]
    spec, where = _spec(one, kind, form)
    devices = form.object(form.object(spec, where, ("devices",)).get("devices"), f"{where}.devices",
                          ("requests", "constraints", "config"))  # fmt: skip
    inline = version == INLINE
    requests = tuple(_requests(row, form, inline) for row in form.list(devices.get("requests"), "requests", MOST))
    constraints = tuple(_constraint(row, form) for row in form.list(devices.get("constraints"), "constraints", MOST))
    known = {one.name for row in requests for one in row}
    known |= {name.partition("/")[0] for name in known}
    configs = []
    for row in form.list(devices.get("config"), "config", MOST):
        configs.append(form.object(row, "config", ("requests", "opaque")))
        if configs[-1].get("opaque") is None:
            form.wrong.append("a config has no opaque; write its driver and parameters there")
        parameters = form.object(configs[-1].get("opaque"), "config.opaque").get("parameters")
        form.object(parameters, "config.opaque.parameters")
        _names(form.texts(configs[-1].get("requests"), "config.requests"), known, form, "config.requests")
    for each in constraints:
        _names(each.requests, known, form, "constraints.requests")
    twice = [
        name for name, number in Counter(one.name for row in requests for one in row).items() if name and number > 1
    ]
    form.wrong += [f"two requests have the name {name}" for name in twice]
    names = _metadata(one, "namespace"), form.metadata(one.get("metadata"))
    unsure, wrong = form.unsure, form.wrong
    if version not in VERSIONS:
        unsure, wrong = [f"the form of {quote(version)} is not known here"], []
    found = (*dict.fromkeys(unsure),), (*dict.fromkeys(wrong),)
    return ClaimSpec(kind, *names, requests, constraints, tuple(configs), *found)


def _spec(one: Mapping[str, Any], kind: str, form: Form) -> tuple[Any, str]:
    """Return what a claim, or one of a template, is specified by, and where that is."""
    spec: Any = one.get("spec")
    there = {*spec} if isinstance(spec, dict) else set()
    if kind == CLAIM and "spec" in there:
        form.wrong.append(f"a {CLAIM} has `devices:` below one `spec:`, not two; omit one of them")
        return spec["spec"], "spec.spec"
    if kind == TEMPLATE and "devices" in there and "spec" not in there:
        form.wrong.append(f"a {TEMPLATE} has `devices:` below two `spec:`, its own and its claims'; write both")
        return {"devices": spec["devices"]}, "spec"
    if kind == TEMPLATE:
        found = form.object(spec, "spec", ("spec", "metadata"))
        more = form.object(found.get("metadata"), "spec.metadata")
        odd = [str(key) for key, value in more.items() if key not in LABELLING and value is not None]
        form.wrong += [f"spec.metadata has {quote(key)}; omit it" for key in odd]
        return found.get("spec"), "spec.spec"
    return spec, "spec"


def _requests(row: Any, form: Form, inline: bool) -> tuple[Request, ...]:
    """Return the alternatives of a request."""
    exact = (*_DEVICES, "adminAccess")
    outside = [key for key in exact if not inline and isinstance(row, dict) and key in row]
    known = exact if inline else ("exactly", *outside)
    found = form.object(row, "requests", ("name", "firstAvailable", *known))
    if outside:
        what = "write exactly: {deviceClassName: ...}"
        form.wrong.append(f"{SERVED} has a request's {outside[0]} inside `exactly:`; {what}")
    elif found and not any(found.get(key) for key in ("deviceClassName", "exactly", "firstAvailable")):
        form.wrong.append(
            f"request {show(found.get('name'))} asks for nothing; write exactly: {{deviceClassName: ...}}"
        )
    elif inline and found.get("exactly") is not None:
        form.wrong.append(f"{INLINE} has no `exactly:`; write {SERVED}")
    name = form.label(found.get("name"), "requests.name")
    if found.get("firstAvailable") is None:
        body = {key: found[key] for key in exact if key in found} if inline or outside else found.get("exactly")
        return (_request(name, form.object(body, name, exact), form),)
    if not inline and found.get("exactly") is not None:
        form.wrong.append(f"request {name} has both exactly and firstAvailable; omit one")
    rows = []
    for one in form.list(found["firstAvailable"], f"{name}.firstAvailable", ALTERNATIVES):
        if isinstance(one, dict) and "exactly" in one:
            form.wrong.append(f"{name}.firstAvailable has no `exactly:`; write what is in it in its place")
        rows.append(form.object(one, f"{name}.firstAvailable", ("name", *_DEVICES)))
    return tuple(
        _request(f"{name}/{form.label(one.get('name'), f'{name}.firstAvailable.name')}", one, form) for one in rows
    )


def _request(name: str, body: Mapping[str, Any], form: Form) -> Request:
    mode, count, admin = body.get("allocationMode") or EXACT, body.get("count"), body.get("adminAccess")
    if isinstance(count, float) and count.is_integer():  # which kubectl may write as a whole number
        form.unsure.append(f"{name}.count is {show(count)}, with a point")
        count = int(count)
    for key, value, well, what in (
        ("allocationMode", mode, mode in (EXACT, ALL), f"{EXACT} or {ALL}"),
        ("count", count, count is None or (type(count) is int and count >= 0), "a number from 1, without quotes"),
        ("count", count, mode != ALL or not count, f"it only without allocationMode {ALL}"),
        ("adminAccess", admin, admin is None or type(admin) is bool, "true or false"),
    ):
        if not well:
            form.wrong.append(f"{name}.{key} is {show(value)}; write {what}")
    where = f"{name}.tolerations"
    rows = form.list(body.get("tolerations"), where)
    return Request(
        name,
        form.named(body.get("deviceClassName"), f"{name}.deviceClassName"),
        form.selectors(body.get("selectors"), f"{name}.selectors"),
        mode,
        count if type(count) is int and count > 0 else 1,
        admin is True,
        tuple(tolerations.read(one, where, form) for one in rows),
    )


def _constraint(row: Any, form: Form) -> Constraint:
    found = form.object(row, "constraints", ("requests", "matchAttribute", "distinctAttribute"))
    distinct = found.get("matchAttribute") is None  # of both the scheduler goes by matchAttribute alone
    if distinct and found.get("distinctAttribute") is None:
        form.wrong.append("a constraint has neither matchAttribute nor distinctAttribute; write one")
    key = "distinctAttribute" if distinct else "matchAttribute"
    attribute = form.text(found.get(key), f"constraints.{key}")
    if attribute and "/" not in attribute:
        form.wrong.append(
            f"constraints.{key} is {quote(attribute)}, without a domain; write one before it, as in "
            "resource.kubernetes.io/pcieRoot or gpu.nvidia.com/productName"
        )
    return Constraint(attribute, distinct, form.texts(found.get("requests"), "constraints.requests"))


def _names(names: Sequence[str], known: Collection[str], form: Form, where: str) -> None:
    """Take note of names that no request has, or that come twice."""
    form.wrong += [f"{where} has {quote(name)} twice" for name, number in Counter(names).items() if number > 1]
    for name in names:
        if name not in known:
            near = form.suggested(name, [*known])
            form.wrong.append(f"{where} has {quote(name)}, which is no request{near}")
