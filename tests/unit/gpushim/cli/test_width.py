"""Every command on terminals of 40, 80 and 200 columns: no UUID, path or fix of its JSON is cut or broken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import fakehost
from gpushim.cli import main
from unit.gpushim.cli import every, streamed
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow
IDENTIFIER = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{36}|(?<![\w.])/[\w.@/+:-]*[\w/]")
COMMANDS = ("fix",)  # members whose values are commands, or sentences with one
# Members of JSON that a table leaves out on purpose.
LEFT_OUT = {
    "cdi list": {"spec"},
    "explain": {"value", "edits"},
    "info": {"driver_root", "runtime", "files"},
    "ps": {"bundle"},
}
# Those whose JSON is another text than what people get: a spec, or the same for both.
OTHER = {"cdi generate", "configure containerd", "configure crio", "configure docker", "configure podman"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return every.host(tmp_path_factory.mktemp("width"))


def strings(data: Any, without: set[str], key: str = "") -> Iterator[tuple[str, str]]:
    """The strings of JSON, each with the name of the member that it is in."""
    if isinstance(data, str):
        yield key, data
    for name, value in data.items() if isinstance(data, dict) else ():
        if name not in without:
            yield from strings(value, without, name)
    for value in data if isinstance(data, list) else ():
        yield from strings(value, without, key)


def identifiers(name: str, text: str) -> set[str]:
    found = set()
    for key, value in strings(json.loads(text), LEFT_OUT.get(name, set())):
        found |= {value} if key in COMMANDS and value else set(IDENTIFIER.findall(value))
    return found


@pytest.fixture(scope="module")
def wanted(machine: Machine) -> dict[str, set[str]]:
    """What each command's JSON names."""
    names = [name for name, way in every.WAYS.items() if way.json and name not in OTHER]
    lines = [[*every.WAYS[name].words(machine), "--format=json"] for name in names]
    return {name: identifiers(name, out) for name, (_, out, _) in zip(names, every.run(machine, "well", lines))}


def test_what_is_looked_for(wanted: dict[str, set[str]]) -> None:
    """Else the others would show nothing."""
    few = {
        "ps",
        "labels",
        "refresh",
        "mig plan",
        "mig show",
        "system create-dev-char-links",
        "system create-device-nodes",
        "cdi list",
    }
    assert {name for name, found in wanted.items() if not found} <= few
    assert any(each.startswith("GPU-") for each in wanted["list"])
    assert any(" " in each for each in wanted["doctor"])


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_nothing_is_shortened(machine: Machine, wanted: dict[str, set[str]], columns: str) -> None:
    found = every.run(machine, columns, [every.WAYS[name].words(machine) for name in wanted])
    for (name, named), (_, out, said) in zip(wanted.items(), found):
        lost = {each for each in named if each not in out + said}
        assert not lost, (name, columns, lost, out)
        assert "…" not in out, name


def groups(command: click.Group, *words: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each group's words, and the first sentences of its commands."""
    context = click.Context(command)
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    yield words, [(each.help or "").partition("\n\n")[0].partition(". ")[0] for _, each in found if each]
    for name, each in found:
        if isinstance(each, click.Group):
            yield from groups(each, *words, name)


@pytest.mark.parametrize("columns", streamed.TERMINALS)
def test_help_has_whole_sentences(machine: Machine, columns: str) -> None:
    listed = dict(groups(main))
    assert len(listed) == 8
    for sentences, (_, out, _) in zip(
        listed.values(), every.run(machine, columns, [[*each, "--help"] for each in listed])
    ):
        assert "..." not in out.partition("\n\n")[2]
        assert max(map(len, out.splitlines())) <= int(columns)
        assert {each for each in sentences if "".join(each.split()) not in "".join(out.split())} == set()


@pytest.mark.parametrize(("columns", "fits"), [("40", False), ("80", False), ("200", True)])
def test_rows_that_do_not_fit_are_blocks(machine: Machine, columns: str, fits: bool) -> None:
    ((_, out, _),) = every.run(machine, columns, [["list"]])
    lines = out.splitlines()
    assert (lines[0].split()[:3] == ["INDEX", "MODEL", "UUID"]) == fits
    assert ("INDEX    0" in lines) == (not fits)
    assert not fits or max(map(len, lines)) <= int(columns)


def test_elsewhere_a_row_is_a_line(machine: Machine) -> None:
    """Scripts grep it, however narrow the terminal from which they were started."""
    ((_, out, _),) = every.run(machine, "well", [["list"]])
    assert [line.split()[0] for line in out.splitlines()] == ["INDEX", "0", "1"]


def test_a_refresh_says_each_thing_once_and_as_text(machine: Machine) -> None:
    spec = Path(every.spec(machine))
    spec.with_name("other.json").write_text(spec.read_text())
    ((code, out, _),) = every.run(machine, "80", [["refresh"]])
    warning, summary = (line for line in out.splitlines() if line != "listing the GPUs ...")  # where it is slow
    assert warning.startswith(
        f"gpushim: WARNING: {spec} is removed: {spec.with_name('other.json')} has nvidia.com/gpu="
    )
    assert (code, summary) == (0, "2 GPUs and 0 MIG instances, driver 535.183.01")


def test_a_refresh_says_which_gpus_are_missing(tmp_path: Path) -> None:
    machine = every.host(tmp_path)
    fakehost.build(machine.root, 1)
    ((_, out, _),) = every.run(machine, "well", [["refresh"]])
    assert "1 GPUs and 0 MIG instances, driver 535.183.01; missing since the first look of this boot: GPU 1\n" in out
