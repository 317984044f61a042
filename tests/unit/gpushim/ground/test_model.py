"""The types of what is JSON say what config.schema.json and a real snapshot say; mypy finds who says otherwise."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from gpushim.config import policy
from gpushim.ground import model
from unit.gpushim.inventory.machine import Machine

TOP = Path(model.__file__).parents[3]
JSON = {"string": str, "boolean": bool, "integer": int}


def of_schema(rule: dict[str, Any]) -> Any:
    return list[of_schema(rule["items"])] if rule["type"] == "array" else JSON[rule["type"]]  # type: ignore[misc]


def fits(value: Any, kind: Any) -> bool:
    """Return whether a JSON value is of a type, members of a TypedDict and all, with none left over."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Union:
        return any(fits(value, one) for one in args)
    if origin is list:
        return isinstance(value, list) and all(fits(one, args[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(one, args[1]) for one in value.values())
    if not hasattr(kind, "__required_keys__"):
        return type(value) is kind
    hints = get_type_hints(kind)
    if not isinstance(value, dict) or not kind.__required_keys__ <= value.keys() <= hints.keys():
        return False
    return all(fits(one, hints[key]) for key, one in value.items())


def test_the_policy_is_the_schema() -> None:
    sections = get_type_hints(model.Config)
    schema = policy.schema()["properties"]
    assert sections.keys() == schema.keys()
    for name, section in sections.items():
        rules = schema[name]["properties"]
        assert get_type_hints(section) == {key: of_schema(rule) for key, rule in rules.items()}


@pytest.mark.slow
def test_a_snapshot_is_a_snapshot(machine: Machine) -> None:
    """Of a host with all there is: no member is missing, and none is left over, wherever in it."""
    keep = "[mps]\nenabled = true\n"
    machine.build([{}, {"mig": [(1, 0, "3g.20gb")]}], keep, drm=True, imex=2, mps=True, complete=True)
    snapshot = machine.refreshed()
    assert snapshot.keys() == get_type_hints(model.Snapshot).keys()
    assert fits(snapshot, model.Snapshot)
    found = {key for group in snapshot["files"].values() for file in group for key in file}
    assert found == get_type_hints(model.File).keys()
    snapshot["gpus"][0]["uid"] = ""
    assert not fits(snapshot, model.Snapshot)


@pytest.mark.slow
def test_mypy_finds_a_key_that_is_misspelt(tmp_path: Path) -> None:
    """The right ones are in the same file, or it would be no test of the wrong ones."""
    right = ['snapshot["gpus"][0]["uuid"]', 'policy["cdi"]["spec-dirs"]']
    wrong = ['snapshot["gpus"][0]["uid"]', 'snapshot["stamp"]["bot"]', 'policy["cdi"]["spec_dirs"]']
    text = "from gpushim.ground.model import Policy, Snapshot\nsnapshot: Snapshot\npolicy: Policy\n"
    (tmp_path / "reads.py").write_text(text + "\n".join([*right, *wrong]))
    program = TOP / ".venv/bin/python"  # also where another Python runs this
    if not program.exists():
        pytest.skip(f"there is no {program}; tools/setup.sh test makes it")
    words = [
        *(str(program), "-m", "mypy"),
        "--config-file",
        f"{TOP}/pyproject.toml",
        f"--cache-dir={tmp_path}",
        f"{tmp_path}/reads.py",
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=TOP)
    found = [line.split(":")[1] for line in done.stdout.splitlines() if "has no key" in line]
    assert (found, done.returncode) == (["6", "7", "8"], 1), done.stdout + done.stderr
