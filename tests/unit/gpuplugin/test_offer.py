"""What a node offers, and what its administrator is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin import settings
from gpuplugin.offer import offered, ways
from gpushim.errors import INVENTORY, GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot


def told(found: Any, **values: Any) -> list[str]:
    """The notes about a snapshot; values are those of [device-plugin]."""
    notes: list[str] = []
    section = {name.replace("_", "-"): value for name, value in values.items()}
    offered(found, settings.resolve({}, {}, section, ""), notes)
    return notes


def forbidding(*keys: str) -> Any:
    found = snapshot([gpu(0)])
    found["policy"]["requests"].update(dict.fromkeys(keys, False))
    return found


ENV, MOUNTS = "accept-env-when-unprivileged", "accept-volume-mounts"


@pytest.mark.parametrize(
    ("forbidden", "told_by", "words"),
    [
        ([], ["envvar"], ""),
        ([MOUNTS], ["envvar"], ""),
        ([ENV], ["envvar"], "envvar, which brings nothing to unprivileged containers while accept-env-when-unpr"),
        ([ENV], ["envvar", "volume-mounts"], ""),
        ([ENV], ["cdi-cri"], ""),
        ([MOUNTS], ["volume-mounts"], "gpushim-runtime refuses such containers while accept-volume-mounts"),
        ([MOUNTS], ["cdi-cri", "volume-mounts"], "gpushim-runtime refuses such containers"),
    ],
)
def test_a_way_that_the_policy_forbids_is_told(forbidden: list[str], told_by: list[str], words: str) -> None:
    notes = told(forbidding(*forbidden), device_list_strategy=told_by)
    assert [words in note for note in notes] == [True] * bool(words)


def test_one_variable_for_two_resources_is_told() -> None:
    found = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)])
    (note,) = told(found, mig_strategy="mixed")
    assert "gets the devices of one" in note
    assert told(found, mig_strategy="mixed", device_list_strategy=["volume-mounts"]) == []


def test_an_imex_channel_that_is_not_there_is_told_or_refused() -> None:
    found = snapshot([gpu(0)])
    assert told(found, imex_channels=[3]) == [
        "no container gets IMEX channel 3, which this host does not have; nvidia-modprobe makes it"
    ]
    with pytest.raises(GpushimError, match="imex-required is true, and this host has no IMEX channel 3") as refused:
        told(found, imex_channels=[3], imex_required=True)
    assert refused.value.exit_code == INVENTORY
    found["nodes"]["/dev/nvidia-caps-imex-channels/channel3"] = [1, 3, 0o666, 0, 0]
    assert told(found, imex_channels=[3], imex_required=True) == []
    assert ways(settings.resolve({}, {}, {"imex-channels": [3]}, ""), found).imex == [3]
