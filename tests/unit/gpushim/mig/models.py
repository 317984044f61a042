"""What NVML tells of models' profiles, as NVIDIA's Multi-Instance GPU User Guide has it."""

from __future__ import annotations

from gpushim.mig.fit import Profile

ANY, WIDE = tuple((start, 1) for start in range(7)), ((0, 2), (2, 2), (4, 2), (6, 2))
PAIRS, HALVES, FIRST, WHOLE = WIDE[:3], ((0, 4), (4, 4)), ((0, 4),), ((0, 8),)


def profiles(*rows: Profile) -> dict[str, Profile]:
    return {row.name: row for row in rows}


H100 = profiles(
    Profile(19, "1g.10gb", 1, 7, ANY),
    Profile(20, "1g.10gb+me", 1, 1, ANY),
    Profile(15, "1g.20gb", 1, 4, WIDE),
    Profile(14, "2g.20gb", 2, 3, PAIRS),
    Profile(9, "3g.40gb", 3, 2, HALVES),
    Profile(5, "4g.40gb", 4, 1, FIRST),
    Profile(0, "7g.80gb", 7, 1, WHOLE),
)
