"""tools/man: pages that man(1) can read, of every command."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import click
import pytest

from gpushim import cli

TOP = Path(__file__).parents[2]
KNOWN = ("TH", "SH", "SS", "PP", "TP", "B")  # requests of man(7) that the pages use


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("man_pages", TOP / "tools/man.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAN = load()


@click.group()
def main() -> None:
    """Do things."""


@main.group()
def box() -> None:
    """Keep things.

    .TH is no request here, and \\n no newline.
    """


@box.command()
@click.argument("name")
@click.option("--color", type=click.Choice(["red", "blue"]), default="red", show_default=True, help="Paint it.")
def put(name: str, color: str) -> None:
    """Put 'it' in."""


@main.command(hidden=True)
def secret() -> None:
    """Do nothing."""


def test_pages_of_commands() -> None:
    pages = dict(MAN.pages(main, TOP / "docs"))
    programs = ["gpushim-device-plugin.8", "gpushim-dra-driver.8", "gpushim-hook.8", "gpushim-runtime.8"]
    assert sorted(pages) == ["gpushim-box.1", *programs, "gpushim.1"]
    page = pages["gpushim-box.1"]
    assert "gpushim\\-box \\- Keep things\n" in page
    assert ".SS gpushim box put [OPTIONS] NAME\n" in page
    assert "\\fB\\-\\-color [red|blue]\\fR\nPaint it.  [default: red]\n" in page
    assert "\n\\&.TH is no request here, and \\(rsn no newline.\n" in page
    assert "secret" not in pages["gpushim.1"]
    assert ".TP\n12\n" in pages["gpushim.1"]


@pytest.mark.parametrize(("name", "text"), list(MAN.pages(cli.main, TOP / "docs")))
def test_every_page_is_one_that_man_reads(name: str, text: str, tmp_path: Path) -> None:
    lines = text.splitlines()
    assert lines[0].startswith(f".TH {name.rpartition('.')[0].upper().replace('-', chr(92) + '-')} {name[-1]} ")
    assert lines[1] == ".SH NAME"
    assert {found for line in lines if (found := re.match(r"\.(\w+)", line)) and found[1] not in KNOWN} == set()
    assert [line for line in lines if line.startswith("'") or not line.strip()] == []
    for place, line in enumerate(lines):
        assert not (line == ".TP" and lines[place + 1].startswith(".")), f"line {place}: a term is missing"
    groff = shutil.which("groff")
    if groff:
        (tmp_path / name).write_text(text)
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", "-z", str(tmp_path / name)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_tool_needs_nothing_but_the_checkout(tmp_path: Path) -> None:
    done = subprocess.run([TOP / "tools/man", tmp_path / "x"], capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "x").iterdir()} >= {"gpushim.1", "gpushim-runtime.8", "gpushim-hook.8"}
