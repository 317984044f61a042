from __future__ import annotations

import pytest

from gpushim.paths import mountinfo

LINES = b"""136 31 0:33 / /a rw - proc proc rw
36 31 0:34 /x /a\\040b\\134040\rc rw,relatime shared:7 master:2 - cgroup none rw,devices
"""


@pytest.mark.parametrize(("mount", "kind"), [(b"136", b"proc"), (b"36", b"cgroup"), (b"6", None), (b"31", None)])
def test_a_mount_is_found_by_its_whole_id(mount: bytes, kind: bytes | None) -> None:
    found = mountinfo.find(LINES, mount)
    assert (found and found.type) == kind


def test_a_line_has_optional_words_in_the_middle() -> None:
    _, found = mountinfo.parse(LINES)
    assert (found.parent, found.device, found.root, found.options) == (b"31", b"0:34", b"/x", b"rw,devices")
    assert (found.shared, found.groups) == (b"7", [b"7", b"2"])


def test_names_are_spelled_as_the_kernel_spells_them() -> None:
    place = mountinfo.parse(LINES)[1].point
    assert mountinfo.unescaped(place) == b"/a b\\040\rc"
    assert mountinfo.escaped(b"/a b\\040\rc") == place
