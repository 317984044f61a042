"""Whether devices fit together; tests/e2e/test_dra_explain.py holds it against the real scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.matching.fitting import MOST, Candidates, TooManyError, fit
from gpuplugin.matching.manifests import ALL, EXACT, Constraint, Request

D = "gpu.nvidia.com"


def device(name: str, **attributes: str) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {key.replace("__", "/"): {"string": text} for key, text in attributes.items()},
    }


ABC = [device("a", home="1"), device("b", home="2"), device("c", home="2")]


def request(name: str = "r", number: int = 1, mode: str = EXACT) -> Request:
    return Request(name, "x", (), mode, number, False, ())


def found(requests: list[list[Request]], *constraints: Constraint, free: Any = ABC) -> Any:
    candidates = {one.name: Candidates(free, ABC) for row in requests for one in row}
    return fit(requests, constraints, candidates, D)


def test_no_device_is_in_a_claim_twice() -> None:
    assert found([[request("r", 2)], [request("s")]]) == [("r", "a"), ("r", "b"), ("s", "c")]
    assert found([[request("r", 2)], [request("s", 2)]]) is None


def test_all_is_all_that_match() -> None:
    assert found([[request(mode=ALL)]]) == [("r", "a"), ("r", "b"), ("r", "c")]
    assert found([[request(mode=ALL)]], free=ABC[:2]) is None


def test_the_first_alternative_that_fits() -> None:
    assert found([[request("r/x", 4), request("r/y", 3)]]) == [("r/y", "a"), ("r/y", "b"), ("r/y", "c")]


@pytest.mark.parametrize(
    ("constraint", "names"),
    [
        (Constraint(f"{D}/home", False, ()), ["b", "c"]),
        (Constraint(f"{D}/home", True, ("r",)), ["a", "b"]),
        (Constraint(f"{D}/home", False, ("other",)), ["a", "b"]),
        (Constraint("example.com/home", False, ()), None),
        (Constraint(f"{D}/nothing", True, ()), None),
    ],
)
def test_constraints(constraint: Constraint, names: list[str] | None) -> None:
    way = found([[request("r", 2)]], constraint)
    assert (way and [name for _, name in way]) == names


def test_a_constraint_names_all_alternatives_of_a_request() -> None:
    for name in ("r", "r/x"):
        way = found([[request("r/x", 2)]], Constraint(f"{D}/home", False, (name,)))
        assert [one for _, one in way] == ["b", "c"]


def test_a_way_may_be_refused() -> None:
    candidates = {"r": Candidates(ABC, ABC)}
    asked: list[Any] = []

    def accepted(way: Any) -> bool:
        asked.append(way)
        return bool(way == [("r", "b")])

    way = fit([[request()]], [], candidates, D, accepted)
    assert (way, asked) == ([("r", "b")], [[("r", "a")], [("r", "b")]])
    assert fit([[request()]], [], candidates, D, lambda _: False) is None


def test_what_takes_too_long_is_not_guessed() -> None:
    many = [device(f"d{number}", home=str(number)) for number in range(MOST)]
    candidates = {"r": Candidates(many, many)}
    with pytest.raises(TooManyError):
        fit([[request("r", 16)]], [Constraint(f"{D}/home", False, ())], candidates, D)


@pytest.mark.usefixtures("bounded")
def test_constraints_and_alternatives_without_end_are_not_all_looked_at() -> None:
    many = [device(f"d{number}", home="1") for number in range(MOST)]
    candidates = {"r": Candidates(many, many), "none": Candidates([], [])}
    with pytest.raises(TooManyError):
        fit([[request("r", 2)]], [Constraint(f"{D}/home", True, ())] * 10_000, candidates, D)
    with pytest.raises(TooManyError):
        fit([[request("r", 2)], [request("none")] * 10_000], [], candidates, D)
