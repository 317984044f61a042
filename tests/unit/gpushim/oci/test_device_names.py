from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.ground import errors
from gpushim.oci import device_names
from unit.gpushim.oci.names import KINDS, MIG, PIECES, UUIDS, attempt


def refusal(*texts: str) -> errors.GpushimError:
    with pytest.raises(errors.GpushimError) as caught:
        device_names.parse(texts, KINDS)
    return caught.value


ONE_ITEM = [
    ("all", "all", None),
    ("all-usable", "all-usable", None),
    ("0", "index", 0),
    ("7", "index", 7),
    ("10", "index", 10),
    ("123456789", "index", 123456789),
    (UUIDS[0], "uuid", UUIDS[0]),
    (UUIDS[3].upper(), "uuid", UUIDS[3]),
    (UUIDS[3].lower(), "uuid", UUIDS[3]),
    ("gPu-ABCDEF12-3456-7890-abcd-ef1234567890", "uuid", UUIDS[3]),
    ("GPU-11111111", "uuid-prefix", "GPU-11111111"),
    ("GPU-ABCDEF12", "uuid-prefix", "GPU-abcdef12"),
    ("GPU-11111111-", "uuid-prefix", "GPU-11111111-"),
    ("GPU-11111111-1", "uuid-prefix", "GPU-11111111-1"),
    ("GPU-11111111-1111", "uuid-prefix", "GPU-11111111-1111"),
    ("GPU-11111111-1111-1111-1111-11111111111", "uuid-prefix", "GPU-11111111-1111-1111-1111-11111111111"),
    ("3b:00.0", "pci", "00000000:3b:00.0"),
    ("3B:0A.1", "pci", "00000000:3b:0a.1"),
    ("0000:3b:00.0", "pci", "00000000:3b:00.0"),
    ("00000000:3b:00.0", "pci", "00000000:3b:00.0"),
    ("ABCD:3b:00.0", "pci", "0000abcd:3b:00.0"),
    ("12345678:FF:1f.7", "pci", "12345678:ff:1f.7"),
    ("0:1", "mig-index", (0, 1)),
    ("10:12", "mig-index", (10, 12)),
    (MIG, "mig-uuid", MIG),
    (MIG.upper(), "mig-uuid", MIG),
    ("mig-" + MIG[4:], "mig-uuid", MIG),
    (f"MIG-{UUIDS[0]}/1/0", "mig-legacy", f"MIG-{UUIDS[0]}/1/0"),
    (f"MIG-{UUIDS[3].upper()}/13/7", "mig-legacy", f"MIG-{UUIDS[3]}/13/7"),
    (f"mig-{UUIDS[3].lower()}/0/0", "mig-legacy", f"MIG-{UUIDS[3]}/0/0"),
    (f"MIG-{UUIDS[0]}:13:0", "mig-legacy", f"MIG-{UUIDS[0]}/13/0"),
    ("a/b=0", "cdi", "a/b=0"),
    ("vendor.com/class=name", "cdi", "vendor.com/class=name"),
    ("Vendor-1_x.y/cl.ass-2_z=na:me_1.2-3", "cdi", "Vendor-1_x.y/cl.ass-2_z=na:me_1.2-3"),
    ("k8s.device-plugin.nvidia.com/gpu=0", "cdi", "k8s.device-plugin.nvidia.com/gpu=0"),
    ("management.nvidia.com/gpu=all", "cdi", "management.nvidia.com/gpu=all"),
    ("runtime.nvidia.com/nic=all", "cdi", "runtime.nvidia.com/nic=all"),
    ("evil.com/x=y", "cdi", "evil.com/x=y"),
    ("vendor.com/class=a::1", "cdi", "vendor.com/class=a::1"),
    ("nvidia.com/gpu=all", "all", None),
    ("nvidia.com/gpu=0", "index", 0),
    ("nvidia.com/gpu=0:1", "mig-index", (0, 1)),
    (f"nvidia.com/gpu={UUIDS[0]}", "uuid", UUIDS[0]),
    (f"nvidia.com/gpu={MIG}", "mig-uuid", MIG),
    ("nvidia.com/gpu=3b:00.0", "pci", "00000000:3b:00.0"),
    ("runtime.nvidia.com/gpu=1", "index", 1),
    ("runtime.nvidia.com/gpu=all", "all", None),
    (f"nvidia.com/gpu=MIG-{UUIDS[0]}:1:0", "mig-legacy", f"MIG-{UUIDS[0]}/1/0"),
    ("nvidia.com/gpu=imex-channel-0", "imex-channel", 0),
    ("runtime.nvidia.com/gpu=imex-channel-2047", "imex-channel", 2047),
    *[(f"nvidia.com/gpu={name}", "feature", name) for name in ("gds", "mofed", "gdrcopy", "nvswitch")],
    *[
        (f"nvidia.com/gpu={name}", "cdi", f"nvidia.com/gpu={name}")
        for name in ("GDS", "imex-channel", "imex-channel-00", "imex-channel-x", "imex-channel-0-1")
    ],
    *[(name, "unknown", name) for name in ("gds", "imex-channel-0")],
    ("vendor.com/gpu=gds", "cdi", "vendor.com/gpu=gds"),
    ("nvidia.com/gpu=gpu1", "index", 1),
    ("nvidia.com/gpu=mig0:1", "mig-index", (0, 1)),
    *[(f"nvidia.com/gpu={name}", "cdi", f"nvidia.com/gpu={name}") for name in ("special", "ALL", "00", "void", "x")],
    *[
        (f"nvidia.com/gpu={name}", "cdi", f"nvidia.com/gpu={name}")
        for name in ("gpu", "gpu00", "mig0", "gpu0:1", "GPU0")
    ],
    ("runtime.nvidia.com/gpu=foo", "cdi", "runtime.nvidia.com/gpu=foo"),
]


@pytest.mark.parametrize(("text", "kind", "value"), ONE_ITEM)
def test_one_name_becomes_one_item(text: str, kind: str, value: object) -> None:
    whole = kind in device_names.NOT_GPU_KINDS
    assert device_names.parse([text], KINDS) == [(kind, value, text if whole else text.partition("=")[2] or text)]


LISTS: list[tuple[str, str | None]] = [
    ("0 1 2", "0 1 2"),
    ("2 0 1", "2 0 1"),
    ("0 0", "0"),
    ("0 1 0", "0 1"),
    ("1 0 1 0 1", "1 0"),
    ("0-3", "0 1 2 3"),
    ("3-3", "3"),
    ("0-1 1-2", "0 1 2"),
    ("5 4-6", "5 4 6"),
    ("10-12 0", "10 11 12 0"),
    ("nvidia.com/gpu=0 0", "0"),
    ("nvidia.com/gpu=0 runtime.nvidia.com/gpu=0", "nvidia.com/gpu=0"),
    ("nvidia.com/gpu=0-2", "0 1 2"),
    ("all", "all"),
    ("all 0", "all"),
    ("0 all", "all"),
    ("0 all 1", "all"),
    ("all all", "all"),
    ("all-usable", "all-usable"),
    ("0 all-usable all", "all-usable"),
    ("all all-usable none", "all"),
    ("none all-usable", ""),
    ("0 nvidia.com/gpu=all-usable a/b=0", "all-usable a/b=0"),
    ("all-usable void", None),
    ("all none", "all"),
    ("x all", "all"),
    ("0 nvidia.com/gpu=all", "all"),
    ("none", ""),
    ("none all", ""),
    ("0 none", ""),
    ("none 0", ""),
    ("all a/b=0", "all a/b=0"),
    ("a/b=0 0 all 1 nvidia.com/gpu=x a/b=0", "a/b=0 all nvidia.com/gpu=x"),
    ("0 none a/b=0", "none a/b=0"),
    (
        "nvidia.com/gpu=gds all 1 nvidia.com/gpu=imex-channel-0",
        "nvidia.com/gpu=gds all nvidia.com/gpu=imex-channel-0",
    ),
    ("none nvidia.com/gpu=gds nvidia.com/gpu=gds", "none nvidia.com/gpu=gds"),
    ("nvidia.com/gpu=imex-channel-0 runtime.nvidia.com/gpu=imex-channel-0", "nvidia.com/gpu=imex-channel-0"),
    ("a/b=0 none", "a/b=0 none"),
    ("0 a/b=0 1 a/b=1 0", "0 a/b=0 1 a/b=1"),
    ("all x::1", "all"),
    ("0 1 none all", ""),
    ("nvidia.com/gpu=none", ""),
    ("", ""),
    ("void", None),
    ("0 void", None),
    ("void 0", None),
    ("none void", None),
    ("all void", None),
    ("void all none", None),
]


@pytest.mark.parametrize(("given_names", "expected"), LISTS)
def test_lists_keep_order_drop_duplicates_and_obey_words(given_names: str, expected: str | None) -> None:
    plain = None if expected is None else device_names.parse(expected.split(), KINDS)
    assert device_names.parse(given_names.split(), KINDS) == plain


def test_none_is_an_item_beside_cdi_names() -> None:
    cdi = ("cdi", "a/b=0", "a/b=0")
    assert device_names.parse(["0", "none", "a/b=0"], KINDS) == [("none", None, "none"), cdi]
    assert device_names.parse(["a/b=0", "all", "none"], KINDS) == [cdi, ("all", None, "all")]


@pytest.mark.parametrize("text", ["3-0", "1-0", "0-64", "0-100000", "5-999999999", "nvidia.com/gpu=2-1"])
def test_bad_ranges_are_refused_while_reading(text: str) -> None:
    error = refusal(text)
    assert error.exit_code == errors.REQUEST
    assert f'range "{text}"' in str(error)


@pytest.mark.parametrize("text", ["0::1", UUIDS[0] + "::3", "nvidia.com/gpu=0::1", "::", "::1"])
def test_replicas_are_the_device_plugins_business(text: str) -> None:
    error = refusal(text)
    assert error.exit_code == errors.REQUEST
    assert "device plugin" in str(error)


def test_too_many_items_are_refused() -> None:
    assert "4096" in str(refusal(*[f"{start * 64}-{start * 64 + 63}" for start in range(65)]))


@given(st.integers(0, 5000), st.integers(0, 63))
def test_range_equals_the_listed_indices(first: int, length: int) -> None:
    listed = [str(index) for index in range(first, first + length + 1)]
    assert device_names.parse([f"{first}-{first + length}"], KINDS) == device_names.parse(listed, KINDS)


@given(st.lists(PIECES, max_size=12))
def test_parse_never_repeats_and_never_crashes(texts: list[str]) -> None:
    items, error = attempt(device_names.parse, texts, KINDS)
    if error:
        assert error.exit_code == errors.REQUEST
        return
    assert (items is None) == ("void" in texts)
    identities = [item[:2] for item in items or []]
    assert len(identities) == len(set(identities))
