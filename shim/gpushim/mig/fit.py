"""Which GPU instances a GPU is to have, where, and whether they fit: without NVML, by what it has told."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from gpushim.ground.errors import GpushimError
from gpushim.mig.layout_file import PROFILE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class Profile(NamedTuple):
    """A profile of GPU instances.

    Attributes:
        id: NVML's.
        name: such as 1g.10gb+me.
        slices: of compute.
        most: instances of it that a GPU may have.
        placements: (first memory slice, number) of each; none if NVML does not tell, as without MIG mode.
        memory: in MiB.
        counted: what it has, by the names of inventory.nvml.ATTRIBUTES.
    """

    id: int
    name: str
    slices: int
    most: int
    placements: Sequence[tuple[int, int]]
    memory: int = 0
    counted: Mapping[str, int] = {}


class Instance(NamedTuple):
    """A GPU instance.

    Attributes:
        profile: the profile's name.
        placement: (first memory slice, number).
        computes: slices of its compute instances, the largest first.
    """

    profile: str
    placement: tuple[int, int]
    computes: tuple[int, ...]

    @property
    def kind(self) -> tuple[str, tuple[int, ...]]:
        return self.profile, self.computes

    @property
    def title(self) -> str:
        if self.computes == (int(self.profile[0]),):
            return self.profile
        return " ".join(f"{size}c.{self.profile}" for size in self.computes) or f"{self.profile}, not complete"


class State(NamedTuple):
    """A GPU.

    Attributes:
        enabled: it is in MIG mode.
        pending: the next reset changes that.
        instances: by NVML's number.
        profiles: those that it may have, by name.
    """

    enabled: bool
    pending: bool
    instances: dict[int, Instance]
    profiles: dict[str, Profile]


def target(state: State, counts: Mapping[str, int], used: Collection[Instance], called: str) -> list[Instance]:
    """Return the instances that a GPU is to have: as many of those that it has as can stay, those in use first.

    Args:
        state: the GPU.
        counts: by profile, as in a file.
        used: those of its instances that somebody has.
        called: the GPU, for a refusal.

    Raises:
        GpushimError: they do not fit, with the nearest that do; or the GPU has no such profile.
    """
    profiles = state.profiles
    kinds = _kinds(counts, profiles, called)
    if not _fits([profile for profile, _ in kinds], profiles):
        raise _misfit(counts, kinds, profiles, called)
    candidates = [instance for instance in state.instances.values() if instance.kind in kinds]
    subsets = [subset for size in range(len(candidates) + 1) for subset in combinations(candidates, size)]
    for staying in sorted(subsets, key=lambda subset: (-len({*used} & {*subset}), -len(subset))):
        rest = Counter(kinds)
        rest.subtract(instance.kind for instance in staying)
        if min(rest.values(), default=0) < 0:
            continue
        new = sorted(rest.elements(), key=lambda kind: _order(kind[0], profiles))
        placements = arrange([profile for profile, _ in new], profiles, _slices(staying))
        if placements is not None:
            made = [Instance(profile, placement, computes) for (profile, computes), placement in zip(new, placements)]
            return sorted([*staying, *made], key=lambda instance: instance.placement)
    raise AssertionError("an empty GPU has room for them")


def arrange(
    names: Sequence[str], profiles: Mapping[str, Profile], slices: frozenset[int] = frozenset(), after: int = -1
) -> list[tuple[int, int]] | None:
    """Return a placement for each profile of a sequence, equal ones in order; None if there is no room.

    `slices` of memory are not free, and the first profile's placement is behind slice `after`.
    """
    if not names:
        return []
    for start, size in sorted(profiles[names[0]].placements):
        filled = frozenset(range(start, start + size))
        if start > after and not slices & filled:
            equal = names[1:2] == names[:1]
            others = arrange(names[1:], profiles, slices | filled, start if equal else -1)
            if others is not None:
                return [(start, size), *others]
    return None


def text(counts: Mapping[str, int]) -> str:
    """Return numbers by profile as a file has them, as 3g.40gb: 1, 1g.10gb: 2."""
    return ", ".join(f"{name}: {count}" for name, count in counts.items()) or "no instance"


def _kinds(
    counts: Mapping[str, int], profiles: Mapping[str, Profile], called: str
) -> list[tuple[str, tuple[int, ...]]]:
    """List the instances of a file with their compute instances; several compute instances may share one."""
    kinds: list[tuple[str, tuple[int, ...]]] = []
    parts: dict[str, list[int]] = {}
    for name, count in counts.items():
        match = PROFILE.fullmatch(name)
        profile = profiles.get(match[2]) if match else None
        if not match or not profile or int(match[1] or 0) > profile.slices:
            raise GpushimError(f"{called} has no profile {name}; it has {', '.join(profiles)}")
        if match[1]:
            parts.setdefault(profile.name, []).extend([int(match[1])] * count)
        else:
            kinds += [(profile.name, (profile.slices,))] * count
    for name, sizes in parts.items():
        groups: list[list[int]] = []
        for size in sorted(sizes, reverse=True):
            group = next((group for group in groups if sum(group) + size <= profiles[name].slices), None)
            if group is None:
                groups.append(group := [])
            group.append(size)
        kinds += [(name, tuple(group)) for group in groups]
    return kinds


def _fits(names: list[str], profiles: Mapping[str, Profile]) -> bool:
    if any(count > profiles[name].most for name, count in Counter(names).items()):
        return False
    return arrange(sorted(names, key=lambda name: _order(name, profiles)), profiles) is not None


def _misfit(
    counts: Mapping[str, int],
    kinds: list[tuple[str, tuple[int, ...]]],
    profiles: Mapping[str, Profile],
    called: str,
) -> GpushimError:
    nearest: list[str] = []
    for name in sorted((profile for profile, _ in kinds), key=lambda name: _order(name, profiles)):
        if _fits([*nearest, name], profiles):
            nearest.append(name)
    return GpushimError(f"{called} has no room for {text(counts)}; the nearest that fits is {text(Counter(nearest))}")


def _order(name: str, profiles: Mapping[str, Profile]) -> tuple[int, int, str]:
    """Sort the largest first, and equal names together."""
    profile = profiles[name]
    return -max((size for _, size in profile.placements), default=0), -profile.slices, name


def _slices(instances: Iterable[Instance]) -> frozenset[int]:
    return frozenset(slot for start, size in (i.placement for i in instances) for slot in range(start, start + size))
