"""Commands and settings in the documentation: fenced blocks of its pages, and sessions, which are made by running.

The word behind a fence says what a block is: `sh` is run by a test, `sh not-here` cannot be run on a machine like
this one, `sh node` is run on a node with a kubelet, `sh cluster` is for who administers a cluster and is held against
the chart, `sh docker` and `sh podman` are quick starts and are run from nothing, `toml config` is a config.toml of
gpushim's, `yaml values` are values of the chart. A block behind `<!-- session: STAGE -->` is a session: its lines
that begin with "$ " are commands, and what stands below each is what it prints at that stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PAGES = (TOP / "README.md", *sorted((TOP / "docs").glob("*.md")))
_FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
_SESSION = re.compile(r"(<!-- session: ([a-z]+) -->\n```text\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: the words behind its fence, and what it has between the fences."""

    info: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines that a shell would do something with, each a command; one that goes on in the next is one."""
        lines = re.sub(r" *\\\n *", " ", self.text).splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [Block(info.strip(), body) for info, body in _FENCED.findall(text)]


def anchors(page: Path) -> set[str]:
    """Return the names that a page's headings have as targets of links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """Return a page's links to files and headings that are not there, where the page lies."""
    found = []
    for path, anchor in _LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            found.append(f"{page.name}: {path}#{anchor}")
    return found


def stages(text: str) -> set[str]:
    """Return the stages at which the sessions of a page are made."""
    return {stage for _, stage, _, _ in _SESSION.findall(text)}


def written(text: str, stage: str, say: Callable[[str], str]) -> str:
    """Write the sessions of one stage again.

    Args:
        text: of a page.
        stage: whose sessions are meant; others stay.
        say: runs a command and returns what it printed, with a line's end.
    """

    def session(found: re.Match[str]) -> str:
        if found[2] != stage:
            return found[0]
        commands = [line for line in found[3].splitlines() if line.startswith("$ ")]
        return found[1] + "".join(f"{command}\n{say(command[2:])}" for command in commands) + found[4]

    return _SESSION.sub(session, text)
