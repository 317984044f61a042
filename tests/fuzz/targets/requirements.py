"""NVIDIA_REQUIRE_* against a second reading, with a pattern per term and versions as lists of numbers."""

from __future__ import annotations

import operator
import re
from typing import Any, Mapping

from fuzz.oracles import refused
from gpushim.config.policy import defaults
from gpushim.ground.errors import REQUEST, REQUIREMENT, GpushimError
from gpushim.oci import require
from gpushim.oci.authorization import Gate

LENGTH = 512
POLICY = defaults()
FACTS: tuple[Mapping[str, str], ...] = (
    {"cuda": "12.2", "driver": "535.183.01", "arch": "8.0", "brand": "Nvidia"},
    {"cuda": "12.2", "driver": "535.183.01", "arch": "9.0", "brand": "Tesla"},
)
TERM = re.compile(r"(cuda|driver|arch)(=|!=|<|<=|>|>=)([0-9.]*[0-9][0-9.]*)", re.I | re.ASCII)
BRAND = re.compile(r"brand(=|!=)([^=!<>].*)", re.I | re.ASCII | re.DOTALL)
COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def seeds() -> list[bytes]:
    """Return what CUDA images say, and near misses."""
    real = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=Nvidia,driver>=525,driver<526"
    texts = [real, "cuda>=12", "arch<9.0", "brand!=tesla", "cuda=12.02", "driver>=535.183.1", "cuda>=", "cuda=>12"]
    return [
        text.encode() for text in [*texts, "", " ", ",", "cuda>=12,,", "brand=", "brand==x", "\u017f=1", "arch=8"]
    ]


def one(data: bytes) -> None:
    """Hold an expression against two GPUs."""
    text = data.decode("utf-8", "surrogateescape")
    results = [_expected(text, fact) for fact in FACTS]
    expected = next((result for result in results if result != "holds"), "holds")
    try:
        require.check([("NVIDIA_REQUIRE_X", text)], FACTS)
        found = "holds"
    except GpushimError as error:
        refused(error)
        found = {REQUEST: "invalid", REQUIREMENT: "fails"}[error.exit_code]
    assert found == expected, (found, expected)
    _cuda_version(text)


def _expected(text: str, fact: Mapping[str, str]) -> str:
    groups = [[term for term in group.split(",") if term] for group in text.split()]
    for terms in groups:
        results = [_term(term, fact) for term in terms]
        if None in results:
            return "invalid"
        if terms and all(results):
            return "holds"
    return "fails" if any(groups) else "holds"


def _term(text: str, fact: Mapping[str, str]) -> Any:
    match = BRAND.fullmatch(text)
    if match:
        return (match[2].lower() == fact["brand"].lower()) == (match[1] == "=")
    match = TERM.fullmatch(text)
    return match and COMPARE[match[2]](_version(fact[match[1].lower()]), _version(match[3]))


def _version(text: str) -> list[int]:
    numbers = [int(part[-4000:] or "0") if len(part) < 4000 else 10 ** len(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def _cuda_version(text: str) -> None:
    ignored: list[str] = []
    found = require.gather({"CUDA_VERSION": text}, True, Gate(lambda: False, POLICY, ignored, {}))
    assert len(found) + len(ignored) == 1
    assert all(re.fullmatch(r"cuda>=\d+\.\d+", expression, re.ASCII) for _, expression in found)
