"""NVIDIA_VISIBLE_DEVICES through a whole plan: exactly the devices that a second, slower reading finds."""

from __future__ import annotations

import re
from typing import Any, Optional

from fuzz.oracles import host, refused
from gpushim.decision import plan
from gpushim.ground.errors import GpushimError
from gpushim.oci import device_list, request

INVENTORY: Any = host()
POLICY = INVENTORY["policy"]
BUNDLE: Any = {"rootfs": "/b/rootfs", "userns": False, "hook": "/usr/bin/gpushim-hook"}
LENGTH = 256
QUALIFIED = re.compile(r"[a-z]([\w.-]*[a-z\d])?/[a-z]([\w.-]*[a-z\d])?=([a-z\d]([\w.:-]*[a-z\d])?)", re.ASCII | re.I)
NUMBER = r"(0|[1-9][0-9]{0,8})"
GPUS, MIGS = INVENTORY["gpus"], INVENTORY["mig"]

Chosen = Optional[tuple[set[int], set[int]]]  # indices of GPUs and of MIG instances; None if it is refused


def seeds() -> list[bytes]:
    """Return a list of each form, and near misses."""
    full, legacy = GPUS[0]["uuid"], MIGS[0]["legacy"]
    words = ["all", "none", "void", "0", "0,1", "1,0,1", "0-1", "0-63", "1-0", "2:0", "GPU-0", "GPU-01111111", full]
    words += ["0000:00:00.0", "00000000:01:00.0", "01:00.0", "MIG-GPU-x/1/0", "0::1", "nvidia.com/gpu=all", "gpu0"]
    words += ["nvidia.com/gpu=0", "nvidia.com/gpu=gpu1", "nvidia.com/gpu=mig2:0", " 0 , ,1", "none,0", "0,all,none"]
    return [
        word.encode()
        for word in [*words, "00", "-1", "+1", "\u0660", "1e0", "0x1", ",", full.lower(), MIGS[0]["uuid"], legacy]
    ]


def one(data: bytes) -> None:
    """Ask for a list."""
    text = data.decode("utf-8", "surrogateescape")
    if "\0" in text:
        return
    spec = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=" + text]}}
    expected = _expected([word.strip() for word in text.split(",") if word.strip()])
    try:
        wanted = request.read(spec, POLICY)
        if wanted is None:
            assert expected == "nothing", expected
            return
        edits, _, _ = plan.plan(wanted, INVENTORY, BUNDLE)
    except GpushimError as error:
        refused(error)
        assert expected is None, expected
        return
    nodes = {edit.value["path"] for edit in edits if edit.kind == "node"}
    gpus = {gpu["index"] for gpu in GPUS if gpu["node"] in nodes}
    migs = {number for number, mig in enumerate(MIGS) if set(mig["nodes"]) <= nodes}
    assert (gpus, migs) == _with_parents(expected), (gpus, migs, expected)


def _with_parents(chosen: Any) -> Any:
    return chosen and (chosen[0] | {MIGS[number]["gpu"] for number in chosen[1]}, chosen[1])


def _expected(words: list[str]) -> Any:
    """Read a list: "nothing", None for a refusal, or the indices of GPUs and MIG instances."""
    if not words or "void" in words:
        return "nothing"
    if len(words) == 1 and words[0].rstrip("/") == device_list.DEVICE_LIST:
        return None
    found: list[Chosen] = []
    for word in words:
        name = word
        match = QUALIFIED.fullmatch(word)
        if match:
            if word.partition("=")[0] not in (POLICY["cdi"]["kind"], device_list.AUTOMATIC_KIND):
                return None  # a device of others, which the image may not name
            name = match[3]
        if name in ("all", "none"):
            break
        found.append(_one(name, bool(match)))
    else:
        return None if None in found else _union(found)
    # What stood before the word must have been of a sound form; its devices need not be there.
    if any(_malformed(word.partition("=")[2] if QUALIFIED.fullmatch(word) else word) for word in words[: len(found)]):
        return None
    if any(QUALIFIED.fullmatch(w) and w.partition("/")[0] not in ("nvidia.com", "runtime.nvidia.com") for w in words):
        return None
    # Behind it, only devices that need a CDI spec count; of ours, no name has one.
    if any(_needs_spec(word) for word in words):
        return None
    return ({0, 1}, {0}) if name == "all" else (set(), set())


def _needs_spec(word: str) -> bool:
    match = QUALIFIED.fullmatch(word)
    if not match:
        return False
    if word.partition("=")[0] not in (POLICY["cdi"]["kind"], device_list.AUTOMATIC_KIND):
        return True
    name = match[3]
    return name not in ("all", "none") and not _malformed(name) and not _sound(name)


def _sound(name: str) -> bool:
    typed = re.fullmatch(rf"(gpu{NUMBER}|mig{NUMBER}:{NUMBER})", name)
    return bool(typed) or _form(name) is not None


def _malformed(name: str) -> bool:
    match = re.fullmatch(f"{NUMBER}-{NUMBER}", name)
    return "::" in name or bool(match and not 0 <= int(match[2]) - int(match[1]) < 64)


def _form(name: str) -> Any:
    """Return a test for a GPU and one for a MIG instance, or None if it is no name of ours."""
    hexes = "[0-9a-f]"
    uuid = rf"{hexes}{{8}}-({hexes}{{4}}-){{3}}{hexes}{{12}}"
    start = rf"({hexes}{{8}}(-{hexes}{{0,4}}|(-{hexes}{{4}}){{2}}(-{hexes}{{0,4}})?|-{hexes}{{4}}-{hexes}{{0,4}})?"
    start += rf"|{hexes}{{8}}(-{hexes}{{4}}){{3}}-{hexes}{{0,12}})"
    low = name.lower()
    if re.fullmatch(NUMBER, name):
        return lambda gpu: gpu["index"] == int(name), None
    if re.fullmatch(f"gpu-{start}", low):
        return lambda gpu: gpu["uuid"].lower().startswith(low), None
    if re.fullmatch(f"mig-{uuid}", low):
        return None, lambda mig: mig["uuid"].lower() == low
    if re.fullmatch(f"mig-gpu-{uuid}/{NUMBER}/{NUMBER}", low):
        return None, lambda mig: mig["legacy"].lower() == low
    match = re.fullmatch(f"{NUMBER}:{NUMBER}", name)
    if match:
        return None, lambda mig: (mig["gpu"], mig["index"]) == (int(match[1]), int(match[2]))
    match = re.fullmatch(rf"(({hexes}{{4}}|{hexes}{{8}}):)?({hexes}{{2}}:{hexes}{{2}}\.{hexes})", low)
    if match:
        return lambda gpu: gpu["pci"] == f"{match[2] or '':0>8}:{match[3]}", None
    return None


def _one(name: str, qualified: bool) -> Chosen:
    if _malformed(name):
        return None
    match = re.fullmatch(f"{NUMBER}-{NUMBER}", name)
    if match:
        return _union([_one(str(index), False) for index in range(int(match[1]), int(match[2]) + 1)])
    typed = re.fullmatch(rf"(gpu{NUMBER}|mig{NUMBER}:{NUMBER})", name)
    form = _form(name[3:] if qualified and typed else name)
    if form is None:
        return None
    gpus = {gpu["index"] for gpu in GPUS if form[0] and form[0](gpu)}
    migs = {number for number, mig in enumerate(MIGS) if form[1] and form[1](mig)}
    return (gpus, migs) if len(gpus) + len(migs) == 1 else None


def _union(parts: list[Chosen]) -> Chosen:
    if None in parts:
        return None
    sides = [part for part in parts if part]
    return {index for gpus, _ in sides for index in gpus}, {number for _, migs in sides for number in migs}
