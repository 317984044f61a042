"""Which instances stay, which are made, where, and the nearest layout where there is no room."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.mig import fit
from gpushim.mig.fit import Instance, State
from unit.gpushim.mig.models import H100


def instance(text: str) -> Instance:
    """An instance by profile and placement, as 3g.40gb@4, with one compute instance; ! stands for none."""
    name, _, start = text.rstrip("!").partition("@")
    placement = next(placement for placement in H100[name].placements if placement[0] == int(start))
    return Instance(name, placement, () if text.endswith("!") else (H100[name].slices,))


def text(instances: list[Instance]) -> str:
    return " ".join(f"{one.profile}@{one.placement[0]}" for one in instances)


def target(now: str, counts: dict[str, int], used: str = "") -> list[Instance]:
    instances = [instance(word) for word in now.split()]
    state = State(True, False, dict(enumerate(instances)), H100)
    return fit.target(state, counts, [instance(word) for word in used.split()], "GPU 0")


@pytest.mark.parametrize(
    ("now", "counts", "after"),
    [
        ("", {"1g.10gb": 7}, " ".join(f"1g.10gb@{start}" for start in range(7))),
        ("", {"3g.40gb": 1, "1g.10gb": 3}, "3g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6"),
        ("", {"3g.40gb": 1, "4g.40gb": 1}, "4g.40gb@0 3g.40gb@4"),
        ("3g.40gb@4", {"3g.40gb": 1, "1g.10gb": 1}, "1g.10gb@0 3g.40gb@4"),
        ("1g.10gb@6 1g.10gb@5", {"1g.10gb": 1}, "1g.10gb@6"),
        ("1g.10gb@2", {}, ""),
        # Both cannot stay where they are: 4g fits only at 0.
        ("3g.40gb@0", {"4g.40gb": 1, "3g.40gb": 1}, "4g.40gb@0 3g.40gb@4"),
        ("1g.10gb@0 1g.10gb@6", {"4g.40gb": 1, "1g.10gb": 2}, "4g.40gb@0 1g.10gb@4 1g.10gb@6"),
        # What a killed process has left without a compute instance is made anew.
        ("1g.10gb@6!", {"1g.10gb": 1}, "1g.10gb@0"),
    ],
)
def test_what_a_gpu_is_to_have(now: str, counts: dict[str, int], after: str) -> None:
    assert text(target(now, counts)) == after


def test_what_is_in_use_stays_before_others() -> None:
    now = "1g.10gb@0 1g.10gb@1 1g.10gb@5"
    assert text(target(now, {"1g.10gb": 1}, "1g.10gb@5")) == "1g.10gb@5"
    # One that stays in use leaves no room for the two others, which have to move.
    assert text(target("1g.10gb@0 1g.10gb@4", {"1g.10gb": 1, "3g.40gb": 1}, "1g.10gb@4")) == "3g.40gb@0 1g.10gb@4"


def test_compute_instances_share_a_gpu_instance() -> None:
    state = State(True, False, {}, H100)
    after = fit.target(state, {"1c.3g.40gb": 4, "2c.3g.40gb": 1}, [], "GPU 0")
    assert [(one.profile, one.computes, one.title) for one in after] == [
        ("3g.40gb", (2, 1), "2c.3g.40gb 1c.3g.40gb"),
        ("3g.40gb", (1, 1, 1), "1c.3g.40gb 1c.3g.40gb 1c.3g.40gb"),
    ]


@pytest.mark.parametrize(
    ("counts", "nearest"),
    [
        ({"1g.10gb": 8}, "1g.10gb: 7"),
        ({"3g.40gb": 3, "1g.10gb": 1}, "3g.40gb: 2"),
        ({"4g.40gb": 2}, "4g.40gb: 1"),
        ({"2g.20gb": 3, "1g.20gb": 2}, "2g.20gb: 3, 1g.20gb: 1"),
        ({"1g.10gb+me": 2, "1g.10gb": 1}, "1g.10gb: 1, 1g.10gb+me: 1"),
        ({"7g.80gb": 1, "1g.10gb": 1}, "7g.80gb: 1"),
    ],
)
def test_the_nearest_that_fits(counts: dict[str, int], nearest: str) -> None:
    with pytest.raises(GpushimError, match=f"no room for .*; the nearest that fits is {nearest}".replace("+", r"\+")):
        fit.target(State(True, False, {}, H100), counts, [], "GPU 0")


def test_a_profile_that_the_gpu_lacks() -> None:
    with pytest.raises(GpushimError, match=r"GPU 0 has no profile 1g\.5gb; it has 1g\.10gb, 1g\.10gb\+me, "):
        fit.target(State(True, False, {}, H100), {"1g.5gb": 1}, [], "GPU 0")
    with pytest.raises(GpushimError, match=r"no profile 4c\.3g\.40gb"):
        fit.target(State(True, False, {}, H100), {"4c.3g.40gb": 1}, [], "GPU 0")


def test_from_any_layout_to_any_that_fits() -> None:
    """No placement is taken twice, nothing moves that could stay, and the numbers are those asked for."""
    sets = [names for count in (1, 2, 3) for names in combinations_with_replacement(sorted(H100), count)]
    layouts = []
    for names in sets:
        try:
            layouts.append(fit.target(State(True, False, {}, H100), Counter(names), [], ""))
        except GpushimError:
            continue
    assert len(layouts) > 40
    for before in layouts:
        for goal in layouts:
            counts = Counter(one.profile for one in goal)
            after = fit.target(State(True, False, dict(enumerate(before)), H100), counts, [], "")
            slices = [slot for one in after for slot in range(one.placement[0], sum(one.placement))]
            assert len(slices) == len({*slices})
            assert Counter(one.profile for one in after) == counts
            assert before != goal or after == before
