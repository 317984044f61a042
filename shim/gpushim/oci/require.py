"""The conditions an image puts on the host: NVIDIA_REQUIRE_*.

One variable is a choice of groups, separated by spaces; a group is a list of terms, separated by commas, that
must all hold; every variable must hold. The language is that of NVIDIA's containers.
Hot path: imports nothing but gpushim's bounds, errors and selection; time grows only with the expressions' length.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.errors import REQUEST, REQUIREMENT, GpushimError, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Optional, Sequence

    from gpushim.oci.authorization import Gate

    Term = tuple[str, str, str]  # property, operator, value
    Version = list[tuple[int, str]]

PREFIX = "NVIDIA_REQUIRE_"
FOREIGN_PREFIX = "NVIDIA_REQUIRE_JETPACK"  # conditions on Jetson's own releases, which no PCIe driver has
ADVICE = ", please update your driver to a newer version, or use an earlier cuda container"

OTHERS = 360  # characters of alternatives after which no further one is shown
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
_VERSION = "0123456789."
TRUE = ("1", "t", "T", "TRUE", "true", "True")  # Go's strconv.ParseBool


def gather(env: Mapping[str, str], legacy: bool, gate: Gate) -> list[tuple[str, str]]:
    """Return the conditions of a container.

    With `legacy`, an image from before NVIDIA_REQUIRE_CUDA, CUDA_VERSION is one too; the gate gets a clause about a
    CUDA_VERSION that is no version.

    Returns:
        (variable, expression) sorted by variable, blank ones left out, the one from CUDA_VERSION last; none where
        conditions do not count.

    Raises:
        GpushimError: REQUEST, for variables that are too long or too many.
    """
    names = [name for name in env if name.startswith(PREFIX)]
    off, value = "NVIDIA_DISABLE_REQUIRE", env.get("NVIDIA_DISABLE_REQUIRE", "")
    disabled, always = value in TRUE, gate.policy["requests"]["disable-require"]
    if value:
        gate.effects[off] = "no condition counts" if disabled else f"does nothing: {quote(value)} is not true"
    if disabled or always:
        effect = f"is ignored: {'[requests] disable-require' if always else off} is true"
        gate.effects.update(dict.fromkeys(names, effect))
        return []
    jetsons = [name for name in names if name.startswith(FOREIGN_PREFIX)]
    gate.effects.update(dict.fromkeys(jetsons, "is ignored: it is about Jetson's releases"))
    names = [name for name in names if not name.startswith(FOREIGN_PREFIX)]
    _check_size(env, names)
    requirements = [(name, env[name]) for name in sorted(names) if env[name].strip()]
    gate.effects.update({name: "a condition" for name, _ in requirements})
    version = _major_minor(env["CUDA_VERSION"]) if legacy else ""
    if version:
        requirements.append(("CUDA_VERSION", "cuda>=" + version))
    elif legacy:
        text = quote(env["CUDA_VERSION"])
        gate.ignored.append(
            f'CUDA_VERSION is "{text}", which is not a version, so it cannot be compared with the driver'
        )
    return requirements


def _check_size(env: Mapping[str, str], names: list[str]) -> None:
    if len(names) > bounds.CONDITIONS:
        raise GpushimError(
            f"the container has more than {bounds.CONDITIONS} {PREFIX}* variables; remove some", REQUEST
        )
    for name in names:
        if len(env[name]) > bounds.VALUE:
            raise GpushimError(f"{quote(name)} has more than {bounds.VALUE} characters; shorten it", REQUEST)
    if sum([len(env[name]) for name in names]) > bounds.CONDITIONS_TEXT:
        limit = f"{bounds.CONDITIONS_TEXT} characters"
        raise GpushimError(f"the container's {PREFIX}* variables have more than {limit}; remove some", REQUEST)


def check(requirements: Sequence[tuple[str, str]], facts: Sequence[Mapping[str, Optional[str]]]) -> None:
    """Check every condition for every selected GPU.

    Args:
        requirements: from `gather`.
        facts: one mapping for each selected GPU, with "cuda" and "driver" versions, "arch" (compute
            capability) and "brand"; one with cuda and driver alone when no GPU is selected. A value that is
            missing, None or empty is unknown and satisfies any condition.

    Raises:
        GpushimError: REQUIREMENT, when a condition does not hold; REQUEST, when a term met before the first
            group that holds is not understood.
    """
    different: list[Mapping[str, Optional[str]]] = []  # eight equal GPUs are checked once
    for fact in facts or [{}]:
        if fact not in different:
            different.append(fact)
    for variable, expression in requirements:
        for fact in different:
            if not _is_satisfied(variable, expression, fact):
                raise GpushimError(_unsatisfied(variable, expression.split(), fact), REQUIREMENT)


def compare(left: str, right: str) -> int:
    """Return -1, 0 or 1, as one dotted version is older than, the same as, or newer than another.

    They are compared number by number; 12, 12.0 and 12.00 are equal.
    """
    first, second = _version(left), _version(right)
    return (first > second) - (first < second)


def _version(text: str) -> Version:
    # (length, digits) orders numbers of any length without int(), which refuses more than 4300 digits.
    digits = [part.lstrip("0") for part in text.split(".")]
    while digits and not digits[-1]:
        digits.pop()
    return [(len(part), part) for part in digits]


def _is_satisfied(variable: str, expression: str, fact: Mapping[str, Optional[str]]) -> bool:
    results: dict[str, bool] = {}  # images repeat the same driver terms for every brand
    empty = True
    for group in expression.split():
        terms = [text for text in group.split(",") if text]
        for text in terms:
            if text not in results:
                results[text] = _is_true(_term(variable, text), fact)
        if terms and all(results[text] for text in terms):
            return True
        empty = empty and not terms
    return empty


def _term(variable: str, text: str) -> Term:
    name = text[: len(text) - len(text.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))]
    value = text[len(name) :].lstrip("=!<>")
    operator = text[len(name) : len(text) - len(value)]
    name = name.lower()
    if name == "brand":
        valid = operator in ("=", "!=") and value != ""
    else:
        number = value.strip(".") != "" and value.strip(_VERSION) == ""
        valid = name in ("cuda", "driver", "arch") and operator in _OPERATORS and number
    if not valid:
        raise GpushimError(
            f'invalid requirement: {quote(variable)} has the term "{quote(text)}"; write cuda, driver or arch '
            f"with = != < <= > >= and a version, or brand with = != and a name, or set NVIDIA_DISABLE_REQUIRE=true",
            REQUEST,
        )
    return (name, operator, value)


def _is_true(term: Term, fact: Mapping[str, Optional[str]]) -> bool:
    name, operator, value = term
    actual = fact.get(name) or ""
    if name == "brand":
        return not actual or (actual.lower() == value.lower()) == (operator == "=")
    # A driver may carry a suffix after its number; only the number takes part.
    actual = actual[: len(actual) - len(actual.lstrip(_VERSION))]
    if not actual.strip("."):
        return True
    order = compare(actual, value)
    if order == 0:
        return operator in ("=", "<=", ">=")
    return operator in (("!=", "<", "<=") if order < 0 else ("!=", ">", ">="))


def _unsatisfied(variable: str, groups: list[str], fact: Mapping[str, Optional[str]]) -> str:
    has: dict[str, str] = {name: quote(fact.get(name) or "unknown") for name in ("driver", "cuda", "arch", "brand")}
    gpu = f", the GPU arch {has['arch']} and brand {has['brand']}" if fact.get("arch") else ""
    first = groups[0]
    return (
        f"unsatisfied condition: {quote(first)}{ADVICE if first.startswith('cuda>=') else ''} "
        f"({quote(variable)}; driver {has['driver']} has CUDA {has['cuda']}{gpu})"
        f"{_others(groups[1:])}; NVIDIA_DISABLE_REQUIRE=true in its environment starts the container all the same"
    )


def _others(groups: list[str]) -> str:
    """List the other groups, none of which holds: as many as fit into a log's line."""
    groups = [group for group in groups if group.strip(",")]
    if not groups:
        return ""
    quoted: list[str] = []
    for group in groups[: bounds.LISTED]:
        quoted.append(quote(group))
        if sum(map(len, quoted)) > OTHERS:
            break
    count = len(groups) - len(quoted)
    return f"; its other alternatives do not hold either: {' or '.join(quoted)}{f' or {count} more' if count else ''}"


def _major_minor(text: str) -> str:
    # Semantic versions end with -pre-release or +build (semver.org, items 9 and 10).
    parts = text.strip().removeprefix("v").partition("-")[0].partition("+")[0].split(".")
    if len(parts) > 8 or any(not part or len(part) > 9 or part.strip("0123456789") for part in parts):
        return ""
    return ".".join([*parts, "0"][:2])
