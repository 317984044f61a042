"""Claims, templates, classes and pods of a file, as the API server would take them; of the rest it is said that it is
not known here.

Each is read field by field: one that is not known here could change what it means.
Pure. Out of scope: which devices match (verdicts.py), opaque configs (gpuplugin.dra.configs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

API = "resource.k8s.io/"
INLINE = "v1beta1"  # in which a request is not below `exactly`
CLAIM, TEMPLATE, CLASS, POD = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "Pod"
EXACT, ALL = "ExactCount", "All"
_DEVICES = ("deviceClassName", "selectors", "allocationMode", "count", "tolerations")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")


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
    """

    kind: str
    namespace: str
    name: str
    requests: tuple[tuple[Request, ...], ...]
    constraints: tuple[Constraint, ...]
    configs: tuple[Mapping[str, Any], ...]
    unsure: tuple[str, ...]


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


class _Form:
    """Reads values, and collects what is not as it is known here."""

    def __init__(self) -> None:
        self.unsure: list[str] = []

    def object(self, value: Any, where: str, known: Sequence[str] = ()) -> dict[str, Any]:
        """Return an object; none where there is none. Without `known` it may have anything."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.unsure.append(f"{where} is no object")
            return {}
        self.unsure += [f"{where}.{key} is not known here" for key in map(str, value) if known and key not in known]
        return value

    def list(self, value: Any, where: str) -> list[Any]:
        """Return a list; an empty one where there is none."""
        if value is None or isinstance(value, list):
            return value or []
        self.unsure.append(f"{where} is no list")
        return []

    def text(self, value: Any, where: str) -> str:
        """Return a text, which must be there."""
        if isinstance(value, str) and value:
            return value
        self.unsure.append(f"{where} is no text")
        return ""

    def texts(self, value: Any, where: str) -> tuple[str, ...]:
        """Return a list of texts."""
        return tuple(self.text(one, where) for one in self.list(value, where))

    def selectors(self, value: Any, where: str) -> tuple[str, ...]:
        """Return expressions."""
        found = []
        for one in self.list(value, where):
            cel = self.object(self.object(one, where, ("cel",)).get("cel"), f"{where}.cel", ("expression",))
            found.append(self.text(cel.get("expression"), f"{where}.cel.expression"))
        return tuple(found)


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
        if kind in (CLAIM, TEMPLATE) and version.startswith(API):
            claims.append(_claim(one, kind, version))
        elif kind == CLASS and version.startswith(API):
            form = _Form()
            known = ("selectors", "config", "extendedResourceName")
            spec = form.object(one.get("spec"), "spec", known)
            found = form.selectors(spec.get("selectors"), "spec.selectors")
            configs = tuple(form.object(row, "spec.config") for row in form.list(spec.get("config"), "spec.config"))
            classes[_metadata(one, "name")] = Class(found, configs, (*form.unsure,))
        elif kind == POD:
            pods.append(one)
        else:
            notes.append(f"{kind} {_metadata(one, 'name')} of {version} is not looked at")
    notes += [note for pod in pods for note in _of_pod(pod, claims)]
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
    form = _Form()
    spec, where = one.get("spec"), "spec"
    if kind == TEMPLATE:
        spec, where = form.object(spec, where, ("spec", "metadata")).get("spec"), "spec.spec"
    devices = form.object(form.object(spec, where, ("devices",)).get("devices"), f"{where}.devices",
                          ("requests", "constraints", "config"))  # fmt: skip
    inline = version == API + INLINE
    requests = tuple(_requests(row, form, inline) for row in form.list(devices.get("requests"), "requests"))
    constraints = tuple(_constraint(row, form) for row in form.list(devices.get("constraints"), "constraints"))
    configs = []
    for row in form.list(devices.get("config"), "config"):
        configs.append(form.object(row, "config", ("requests", "opaque")))
        _names(form.texts(configs[-1].get("requests"), "config.requests"), requests, form, "config.requests")
    for each in constraints:
        _names(each.requests, requests, form, "constraints.requests")
    if not requests:
        form.unsure.append("it has no request")
    names = _metadata(one, "namespace"), _metadata(one, "name")
    return ClaimSpec(kind, *names, requests, constraints, tuple(configs), (*dict.fromkeys(form.unsure),))


def _requests(row: Any, form: _Form, inline: bool) -> tuple[Request, ...]:
    """Return the alternatives of a request."""
    exact = (*_DEVICES, "adminAccess")
    found = form.object(row, "requests", ("name", "firstAvailable", *(exact if inline else ("exactly",))))
    name = form.text(found.get("name"), "requests.name")
    if found.get("firstAvailable") is None:
        body = {key: found[key] for key in exact if key in found} if inline else found.get("exactly")
        return (_request(name, form.object(body, name, exact), form),)
    if not inline and found.get("exactly") is not None:
        form.unsure.append(f"{name} has both exactly and firstAvailable")
    rows = [
        form.object(one, f"{name}.firstAvailable", ("name", *_DEVICES))
        for one in form.list(found["firstAvailable"], name)
    ]
    return tuple(
        _request(f"{name}/{form.text(one.get('name'), f'{name}.firstAvailable.name')}", one, form) for one in rows
    )


def _request(name: str, body: Mapping[str, Any], form: _Form) -> Request:
    mode, count, admin = body.get("allocationMode") or EXACT, body.get("count") or 1, body.get("adminAccess") or False
    if mode not in (EXACT, ALL) or type(count) is not int or count < 1 or type(admin) is not bool:
        form.unsure.append(f"{name}: its allocationMode, count or adminAccess is none that is known here")
        mode, count, admin = EXACT, 1, False
    tolerations = tuple(
        form.object(one, f"{name}.tolerations", _TOLERATION)
        for one in form.list(body.get("tolerations"), f"{name}.tolerations")
    )
    return Request(
        name,
        form.text(body.get("deviceClassName"), f"{name}.deviceClassName"),
        form.selectors(body.get("selectors"), f"{name}.selectors"),
        mode,
        count,
        admin,
        tolerations,
    )


def _constraint(row: Any, form: _Form) -> Constraint:
    found = form.object(row, "constraints", ("requests", "matchAttribute", "distinctAttribute"))
    distinct = found.get("distinctAttribute") is not None
    if distinct == (found.get("matchAttribute") is not None):
        form.unsure.append("a constraint has neither matchAttribute nor distinctAttribute, or both")
    attribute = form.text(found.get("distinctAttribute" if distinct else "matchAttribute"), "constraints")
    return Constraint(attribute, distinct, form.texts(found.get("requests"), "constraints.requests"))


def _names(names: Sequence[str], requests: Sequence[Sequence[Request]], form: _Form, where: str) -> None:
    """Take note of names that no request has."""
    known = {one.name for row in requests for one in row}
    known |= {name.partition("/")[0] for name in known}
    form.unsure += [f"{where} has {name}, which no request is called" for name in names if name not in known]


def _of_pod(pod: Mapping[str, Any], claims: Sequence[ClaimSpec]) -> Iterator[str]:
    """Say which claims of a pod are not in the file."""
    form, name = _Form(), _metadata(pod, "name")
    for one in form.list(form.object(pod.get("spec"), "spec").get("resourceClaims"), "resourceClaims"):
        row = form.object(one, "resourceClaims")
        for key, kind in (("resourceClaimName", CLAIM), ("resourceClaimTemplateName", TEMPLATE)):
            if row.get(key) and not any((each.kind, each.name) == (kind, row[key]) for each in claims):
                yield f"pod {name} has the {kind} {row[key]}, which is not in the file"
