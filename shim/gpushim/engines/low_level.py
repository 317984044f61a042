"""What CRI-O's default runtime is run with, gpushim-runtime hands containers to: [runtime] low-level says so.

All engines share that key, and a container whose verbs suddenly go to another runtime can neither be stopped nor
removed. So it is set only where config.toml does not say it, no other engine uses gpushim-runtime, and CRI-O did not
either until now; otherwise a note says how. Out of scope: finding a runtime that no key names (policy.py).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from gpushim import policy
from gpushim.engines import Wish, dropin, files, is_ours, tomltext, undo
from gpushim.engines.files import Change
from gpushim.errors import GpushimError

KEY = ("runtime", "low-level")
KNOWN = ("runc", "crun")  # what gpushim-runtime was tried with
OTHERS = ("docker", "containerd", "podman")
KIND = undo.Kind(
    tomltext,
    lambda text: [undo.Setting(KEY, certain=True)] if tomltext.get(text, KEY) is not None else [],
    dropin.HEADER.format(engine="crio"),
)


def taken_over(runtime: dict[str, Any], fresh: bool) -> tuple[list[Change], list[str]]:
    """Work out what to change in config.toml, and what to say.

    Args:
        runtime: CRI-O's settings below [crio.runtime].
        fresh: whether CRI-O has no handler of gpushim's yet.

    Returns:
        changes, at most one, and notes.
    """
    program = default_program(runtime)
    config = policy.config_path()
    try:
        given = (policy.given(config) or {}).get(KEY[0], {})
        names = given.get(KEY[1], policy.defaults()[KEY[0]][KEY[1]])
        if not program or os.path.realpath(_found(names)) == os.path.realpath(program):
            return [], []
    except GpushimError as error:
        return [], [str(error)]
    value = [program, *policy.defaults()[KEY[0]][KEY[1]]]
    if fresh and KEY[1] not in given and not any(map(_uses_us, OTHERS)):
        change = dropin.put(KIND, config, {KEY: value}, {})
        return [change], [f"{KEY[1]} of {config} is {program}, as CRI-O's default runtime is: run gpushim refresh"]
    told = f"CRI-O's default runtime is {program}, and gpushim-runtime hands containers to {_found(names) or 'none'}"
    return [], [f"{told}; {fix(program, config)}"]


def fix(program: str, config: str) -> str:
    """Say how gpushim-runtime comes to hand containers to another runtime."""
    return (
        f'with no container left that gpushim-runtime started, set low-level = ["{program}"] under [runtime] in '
        f"{config} and run gpushim refresh"
    )


def taken_back() -> list[Change]:
    """Work out config.toml without what `taken_over` wrote into it; what somebody has changed since stays."""
    config = policy.config_path()
    try:
        now, made = (_value(content, config) for content in (files.read(config), files.after(config)))
        return [dropin.take_out(KIND, config)] if made is not None and now == made else []
    except GpushimError:
        return []  # it is not TOML, or not to be read: then nothing in it is ours to take back


def default_program(runtime: dict[str, Any]) -> str:
    """Find the program of CRI-O's default runtime.

    Args:
        runtime: CRI-O's settings below [crio.runtime].

    Returns:
        its absolute path; "" if the settings do not say it, or gpushim-runtime cannot hand containers to it.
    """
    name = str(runtime.get("default_runtime", ""))
    given = dropin.table(runtime, "runtimes", name).get("runtime_path") or name
    found = _found([str(given)]) if given and not is_ours(given) else ""
    return found if os.path.basename(found) in KNOWN else ""


def _found(names: list[str]) -> str:
    try:
        return policy.low_level(names)
    except GpushimError:
        return ""


def _value(content: bytes | None, path: str) -> Any:
    return None if content is None else tomltext.get(tomltext.parse(content, path), KEY)


def _uses_us(name: str) -> bool:
    """Say whether an engine's settings name gpushim-runtime."""
    try:
        plan = importlib.import_module(f"gpushim.engines.{name}").plan(Wish(remove=True, files_only=True))
    except GpushimError:
        return True  # nobody knows
    return bool(plan.changes)
