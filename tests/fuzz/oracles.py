"""What must hold whatever the input: the form of a refusal, and a host to ask for GPUs of."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gpushim.ground.errors import GpushimError
from unit.gpushim.decision.inventories import snapshot

SENTENCE = 20_000  # characters; one that lists what a host has is the longest


def refused(error: GpushimError) -> None:
    """Check a refusal: one printable sentence, with one of the codes."""
    sentence = str(error)
    assert sentence and sentence.isprintable(), ascii(sentence)  # noqa: PT018 - one thing
    assert len(sentence) < SENTENCE, len(sentence)
    assert error.exit_code in (1, 2, *range(10, 17), 126, 127)


def host(**changes: Any) -> Any:
    """Return the snapshot of a host with three GPUs, which logs nowhere."""
    found = snapshot(runtime="/usr/sbin/runc", **changes)
    found["policy"]["log"]["file"] = ""
    (mig,) = found["mig"]
    mig.update(uuid="MIG-31111111-1111-1111-1111-111111111111", legacy=f"MIG-{found['gpus'][2]['uuid']}/1/0")
    return found


def scratch() -> Path:
    """Make a directory in memory for the life of the process."""
    kept = tempfile.TemporaryDirectory(dir="/dev/shm")
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
