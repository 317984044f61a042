"""Selectors of claims, in CEL: whether a device of this driver matches, as Kubernetes' scheduler says it.

A part of CEL that claims use: literals, lists, what a device has, comparisons, `in`, `has`, `cel.bind`, `.?` with
orValue, and the methods of cel_values.py. Of the rest it is not known here what Kubernetes makes of it, and so of all
of the expression, for the API server may refuse it: that raises UnsureError, as does what its check of types may
find. This part has the form of expressions of Python, whose parser is used.
No library: those of PyPI lack Kubernetes' quantities and versions, and the one in Python needs two that are compiled.
tests/e2e/test_dra_explain.py holds all this against the real scheduler.
"""

from __future__ import annotations

import ast
import keyword
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpuplugin.matching import cel_values as cel
from gpuplugin.matching import hints
from gpuplugin.matching.cel_values import BOOL, DYN, INT, QUANTITY, SEMVER, STRING, FailsError, UnsureError, need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Run = Callable[[dict[str, Any]], Any]

LONGEST = 10 << 10  # characters (resource.k8s.io/v1, CELSelectorExpressionMaxLength)
DOMAINS, NAMES, OPTIONAL, LIST = "domains ", "names ", "optional ", "list "  # types, before that of what is in them
FIELDS = {"driver": STRING, "attributes": DOMAINS + DYN, "capacity": DOMAINS + QUANTITY}
CONSTANTS = {"quantity": (QUANTITY, cel.amount), "semver": (SEMVER, cel.version)}
WORDS = {"&&": "and", "||": "or", "!": "~", "true": "True", "false": "False", "null": "None", "in": "in", ".?": "."}
SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
MAYBE = "optional__"  # in Python, before the name of an optional field
_TOKEN = re.compile(
    r"(?P<blank>[ \t\r\n\f]+|//[^\n]*)|(?P<int>[0-9]+)(?![\w.])|(?P<name>[A-Za-z_]\w*)(?!['\"])|"
    r"(?P<text>'[^'\\\n]*'(?!')|\"[^\"\\\n]*\"(?!\"))|(?P<sign>\.\?|&&|\|\||[=!<>]=|[.,()\[\]<>!-])",
    re.ASCII,
)


class Part(NamedTuple):
    """An expression: its type, and how it is evaluated."""

    type: str
    run: Run


def matches(text: str, driver: str, body: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Say whether a device matches a selector.

    Args:
        text: the expression.
        driver: of the device.
        body: the device, in the form of resource.k8s.io/v1.

    Returns:
        that, and the names that were looked up, each with its value.

    Raises:
        UnsureError: it is not known here.
        FailsError: evaluation fails.
    """
    part = parsed(text)
    values: dict[str, Any] = {"driver": driver, "attributes": {}, "capacity": {}}
    for field in ("attributes", "capacity"):
        for name, one in body[field].items():
            domain, _, last = name.rpartition("/")
            ((form, value),) = one.items()
            read = {"version": cel.version, "value": cel.amount}.get(form, lambda value: value)
            values[field].setdefault(domain or driver, {})[last] = read(value)
    seen: dict[str, Any] = {}
    try:
        return _true(part.run({"device": values, "seen": seen})), seen
    except RecursionError:
        raise UnsureError("its form") from None


@lru_cache(maxsize=256)
def parsed(text: str) -> Part:
    """Read a selector; raises UnsureError of one that has what is not known here."""
    need(len(text) <= LONGEST, "its length")
    try:
        found = _part(ast.parse(" ".join(_translated(text)), mode="eval").body, {})
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnsureError("its form") from None
    need(found.type in (BOOL, DYN), "a result that is neither true nor false")
    return found


def _translated(text: str) -> Iterator[str]:
    """Yield the words of Python that mean the same."""
    place, last = 0, ("", "")
    while place < len(text):
        found = _TOKEN.match(text, place)
        if not found or not found.lastgroup:
            raise UnsureError(text[place : place + 20], hints.INSTEAD.get(text[place], ""))
        form, word, place = found.lastgroup, found[0], found.end()
        if form == "blank":
            continue
        # What is Python, and not CEL.
        need(not (form == last[0] == "text" or (last[1] == "," and word in ")]")), word)
        known = form != "name" or word in WORDS or not (keyword.iskeyword(word) or word.startswith(MAYBE))
        need(known, word, hints.INSTEAD.get(word, ""))
        need(last[1] != ".?" or (form == "name" and word not in WORDS), word)
        yield repr(word[1:-1]) if form == "text" else MAYBE * (last[1] == ".?") + WORDS.get(word, word)
        last = form, word


def _part(node: ast.expr, names: Mapping[str, str]) -> Part:
    """Read an expression; names are types of what cel.bind has bound."""
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.Name):
        need(node.id in names, node.id)
        return Part(names[node.id], lambda values: values[node.id])
    if isinstance(node, ast.UnaryOp):
        part = _part(node.operand, names)
        if isinstance(node.op, ast.Invert):
            need(part.type in (BOOL, DYN), "!")
            return Part(BOOL, lambda values: not _true(part.run(values)))
        need(isinstance(node.operand, ast.Constant) and part.type == INT, "-")
        return Part(INT, lambda values: -part.run(values))
    if isinstance(node, ast.Compare):
        need(len(node.ops) == 1, "comparisons of comparisons")
        return Part(BOOL, _related(node.ops[0], _part(node.left, names), _part(node.comparators[0], names)))
    if isinstance(node, (ast.BoolOp, ast.List)):
        parts = [_part(one, names) for one in (node.values if isinstance(node, ast.BoolOp) else node.elts)]
        types, runs = {one.type for one in parts}, [one.run for one in parts]
        if isinstance(node, ast.BoolOp):
            need(types <= {BOOL, DYN}, "&& or ||")
            return Part(BOOL, _absorbing(runs, isinstance(node.op, ast.Or)))
        need(len(types) == 1 and types <= {*cel.KINDS.values(), DYN}, "a list of several types")
        return Part(LIST + types.pop(), lambda values: [run(values) for run in runs])
    if isinstance(node, ast.Call) and not node.keywords:
        return _method(node, names) if isinstance(node.func, ast.Attribute) else _function(node, names)
    need(isinstance(node, (ast.Attribute, ast.Subscript)), "its form")
    return _looked_up(cast(ast.Attribute, node), names)


def _constant(value: Any) -> Part:
    type_ = cel.KINDS[type(value)]
    need(type_ != INT or value < 1 << 63, str(value))
    return Part(type_, lambda _: value)


def _true(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FailsError(cel.NO_OVERLOAD)
    return value


def _absorbing(parts: list[Run], deciding: bool) -> Run:
    """Return && or ||: what decides counts, also where another one fails."""

    def run(values: dict[str, Any]) -> bool:
        failed: FailsError | None = None
        for each in parts:
            try:
                if _true(each(values)) is deciding:
                    return deciding
            except FailsError as error:
                failed = failed or error
        if failed:
            raise failed
        return not deciding

    return run


def _related(operator: ast.cmpop, one: Part, other: Part) -> Run:
    types = {one.type, other.type}
    if isinstance(operator, ast.In):
        if other.type.startswith((DOMAINS, NAMES)):
            need(one.type in (STRING, DYN), "in")
            return lambda values: one.run(values) in other.run(values)
        inner = other.type.partition(LIST)[2]
        need(inner and (one.type == inner or DYN in (one.type, inner)), "in")
        return lambda values: _contains(one.run(values), other.run(values))  # each once: they may have such inside
    sign = SIGNS[type(operator)]
    hint = hints.compared(sign, types)
    need(types <= {*cel.KINDS.values(), DYN} and (len(types) == 1 or DYN in types), f"{sign} of two types", hint)
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        same = isinstance(operator, ast.Eq)
        return lambda values: cel.equal(one.run(values), other.run(values)) is same
    need(types <= {DYN, INT, STRING}, f"{sign} of such values", hint)
    below, or_same = isinstance(operator, (ast.Lt, ast.LtE)), isinstance(operator, (ast.LtE, ast.GtE))

    def run(values: dict[str, Any]) -> bool:
        first, second = one.run(values), other.run(values)
        if not type(first) is type(second) in (int, str):
            raise FailsError(cel.NO_OVERLOAD)
        return or_same if first == second else (first < second) is below

    return run


def _contains(value: Any, items: list[Any]) -> bool:
    return any(cel.equal(value, item) for item in items)


def _looked_up(node: ast.Attribute | ast.Subscript, names: Mapping[str, str]) -> Part:
    """Read what has a name, or a domain; a domain that a device does not have is empty."""
    maybe = isinstance(node, ast.Attribute) and node.attr.startswith(MAYBE)
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "device":
            need(node.attr in FIELDS, f"device.{node.attr}")
            return Part(FIELDS[node.attr], lambda values: values["device"][node.attr])
        key = _constant(node.attr.replace(MAYBE, "", 1) if maybe else node.attr)
    else:
        key = _part(node.slice, names)
    base = _part(node.value, names)
    by_domain = base.type.startswith(DOMAINS)
    field = "capacity" if base.type.endswith(QUANTITY) else "attributes"
    within = node.value.slice if isinstance(node.value, ast.Subscript) else None
    domain = str(within.value) if isinstance(within, ast.Constant) else ""
    need(key.type == STRING and (base.type.startswith(NAMES) or (by_domain and not maybe)), "a field of that")

    def run(values: dict[str, Any]) -> Any:
        found, name = base.run(values), key.run(values)
        if by_domain:
            return found.get(name, {})
        if name in found:
            values["seen"][name] = found[name]
        elif not maybe:
            raise FailsError(f"no such key: {name}{hints.key(name, field, domain, values['device'])}")
        return found.get(name)

    return Part(OPTIONAL * maybe + NAMES * by_domain + base.type.partition(" ")[2], run)


def _function(node: ast.Call, names: Mapping[str, str]) -> Part:
    """Read has, quantity or semver."""
    name = ast.unparse(node.func)
    need(name in ("has", *CONSTANTS) and len(node.args) == 1, f"{name}()")
    (argument,) = node.args
    if name == "has":
        need(isinstance(argument, ast.Attribute) and not argument.attr.startswith(MAYBE), "has()")
        base, key = _part(cast(ast.Attribute, argument).value, names), cast(ast.Attribute, argument).attr
        need(base.type.startswith((DOMAINS, NAMES)), "has()")
        return Part(BOOL, lambda values: key in base.run(values))
    value = argument.value if isinstance(argument, ast.Constant) else None
    need(isinstance(value, str), f"{name}() of what is no literal")
    type_, read = CONSTANTS[name]
    constant = read(cast(str, value))
    return Part(type_, lambda _: constant)


def _bound(arguments: list[ast.expr], names: Mapping[str, str]) -> Part:
    """Read cel.bind(name, value, expression)."""
    need(len(arguments) == 3 and isinstance(arguments[0], ast.Name), "cel.bind()")
    name, value = ast.unparse(arguments[0]), _part(arguments[1], names)
    need(name not in (*names, "device", "seen", "cel"), name)
    body = _part(arguments[2], {**names, name: value.type})

    def run(values: dict[str, Any]) -> Any:
        try:
            bound = value.run(values)
        except FailsError:
            raise UnsureError("cel.bind() of what fails") from None
        return body.run({**values, name: bound})

    return Part(body.type, run)


def _method(node: ast.Call, names: Mapping[str, str]) -> Part:
    name, function = cast(ast.Attribute, node.func).attr, cast(ast.Attribute, node.func)
    if ast.unparse(function) == "cel.bind":
        return _bound(node.args, names)
    base, given = _part(function.value, names), [_part(one, names) for one in node.args]
    if base.type.startswith(OPTIONAL):
        inner = base.type[len(OPTIONAL) :]
        need(name == "orValue" and len(given) == 1 and (given[0].type in (inner, DYN) or inner == DYN), f".{name}()")

        def either(values: dict[str, Any]) -> Any:
            found = base.run(values)  # None, which no attribute is, where there is none
            return given[0].run(values) if found is None else found

        return Part(inner, either)
    need((name, len(given)) in cel.METHODS, f".{name}()")
    receivers, result, do = cel.METHODS[name, len(given)]
    types = (*(receivers if base.type == DYN else (base.type,)), DYN)
    need(base.type in (*receivers, DYN) and all(one.type in types for one in given), f".{name}()")
    if name == "matches":
        need(isinstance(node.args[0], ast.Constant), ".matches() of what is no literal")
        cel.pattern(given[0].run({}))

    def run(values: dict[str, Any]) -> Any:
        found = [one.run(values) for one in (base, *given)]
        kinds = {cel.KINDS[type(one)] for one in found}
        if len(kinds) != 1 or not kinds <= {*receivers}:
            raise FailsError(cel.NO_OVERLOAD)
        return do(*found)

    return Part(result, run)
