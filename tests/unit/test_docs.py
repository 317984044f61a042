"""The pages hold together: links lead somewhere, commands and options exist, settings are valid.

tests/e2e/test_docs.py runs the commands.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from e2e import pages
from gpushim import policy
from gpushim.cli import main

INFOS = {"sh", "sh not-here", "text", "toml", "toml config", "yaml", "mermaid"}
ENGINES = [pages.TOP / "docs" / f"{name}.md" for name in ("docker", "containerd", "podman", "kubernetes")]
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
SHORT = 180  # lines


def anchors(page: Path) -> set[str]:
    """The names that a page's headings have as targets of links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*pages.PAGES, pages.TOP / "SECURITY.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def commands() -> list[tuple[str, str]]:
    """Every line with `gpushim` in blocks of the pages: what is run, what cannot be run, and sessions."""
    found = []
    for page in pages.PAGES:
        for block in pages.blocks(page.read_text()):
            lines = (
                block.commands if block.info.startswith("sh") else re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
            )
            found += [(page.name, line) for line in lines if line.startswith("gpushim ")]
    return found


def test_commands_and_options_exist() -> None:
    assert len(commands()) > 40
    for page, line in commands():
        words = shlex.split(line.partition("|")[0], comments=True)[1:]
        command: click.Command | None = main
        context = click.Context(main, info_name="gpushim")
        while isinstance(command, click.Group):
            name, command, words = command.resolve_command(context, words)
            assert command is not None, (page, line)
            context = click.Context(command, info_name=name, parent=context)
        assert command is not None
        command.make_parser(context).parse_args([*words])


def test_blocks_say_what_they_are() -> None:
    for page in pages.PAGES:
        for block in pages.blocks(page.read_text()):
            assert block.info in INFOS, (page.name, block.info)


@pytest.mark.parametrize("page", ENGINES, ids=lambda page: page.name)
def test_what_cannot_be_run_says_so(page: Path) -> None:
    """Commands are run, or stand behind a sentence that says that they are not; the pages are short."""
    text = page.read_text()
    for before in re.split(r"^```sh not-here$", text, flags=re.MULTILINE)[:-1]:
        assert re.search(r"not run here|not at hand|Not run here", before[-400:]), before[-200:]
    assert len(text.splitlines()) <= SHORT
    assert pages.stages(text) <= {"fresh", "stale", "docker"}


def test_settings_are_valid(tmp_path: Path) -> None:
    found = [block.text for page in pages.PAGES for block in pages.blocks(page.read_text()) if "config" in block.info]
    assert len(found) == 3
    for text in found:
        (tmp_path / "config.toml").write_text(text)
        policy.load(str(tmp_path / "config.toml"))
