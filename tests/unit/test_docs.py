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
from gpushim.cli import main
from gpushim.config import policy

INFOS = {"sh", "sh node", "sh not-here", "sh cluster", "sh docker", "sh podman"} | {
    "toml",
    "toml config",
    "yaml",
    "yaml values",
    "text",
    "mermaid",
}
TASKS = [
    pages.TOP / "docs" / f"{name}.md"
    for name in ("docker", "containerd", "podman", "kubernetes", "device-plugin", "sharing", "health")
]
SYMPTOMS = pages.TOP / "docs/symptoms.md"
LINKED = [*pages.PAGES, pages.TOP / "SECURITY.md", pages.TOP / "CONTRIBUTING.md"]
SOURCES = ("shim", "hook", "plugin", "tests", "packaging", "tools", "bench")
STATE = {
    "allocations.json",
    "mig.json",
    "inventory.json",
    "cdi/",
    "health.json",
    "mps/GROUP/",
}  # files of /run/gpushim
LAID = {".toml", ".yaml", ".service", ".sh"}
SHORT, LONG = 180, 200  # lines, but for pictures; of the page that goes from nothing to a pod on several clusters
PICTURED = {"kubernetes": 1, "symptoms": 1, "sharing": 2}  # how many
# Of Mermaid, what the pictures need: a node is a name with or without a text in ["..."], {"..."} or (["..."]).
NODE = r'[a-z]+(?:\["[^"]+"\]|\{"[^"]+"\}|\(\["[^"]+"\]\))?'
EDGE = re.compile(rf'^  ({NODE}) -->(?:\|(?:"[^"]+"|[a-z]+)\|)? ({NODE})$')


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """In the checkout; e2e/test_deb_build and test_rpm_build follow those of what packages lay down."""
    assert pages.broken(page) == []


def test_what_the_code_says_of_pages_leads_somewhere() -> None:
    """As `docs/errors.md#exit-codes`: in messages, comments and what packages lay down."""
    texts = {path: path.read_text() for top in SOURCES[:3] for path in (pages.TOP / top).rglob("*.py")}
    texts |= {path: path.read_text() for path in (pages.TOP / "packaging").rglob("*") if path.suffix in LAID}
    named = {pair for text in texts.values() for pair in re.findall(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?", text)}
    assert len(named) > 5
    for name, anchor in named:
        page = pages.TOP / "docs" / name
        assert page.is_file(), name
        assert not anchor or anchor in pages.anchors(page), (name, anchor)


@pytest.mark.parametrize("page", [pages.TOP / "docs/architecture.md", *LINKED[-2:]], ids=lambda page: page.name)
def test_modules_that_are_named_are_there(page: Path) -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|json)|(?:\w+/)+)`", page.read_text()))
    here = {f"/{path.relative_to(pages.TOP)}" for top in SOURCES for path in (pages.TOP / top).glob("**/*")}
    here |= {f"/{top}" for top in SOURCES}
    missing = {name for name in named if not any(f"{path}/".endswith(f"/{name.rstrip('/')}/") for path in here)}
    assert missing <= STATE


def test_tests_that_security_names_are_there() -> None:
    named = set(re.findall(r"`((?:unit|e2e|fuzz)/[\w/]+)(?:::(\w+))?`", LINKED[-2].read_text()))
    assert len(named) > 100
    for path, function in named:
        assert f"def {function or 'test_'}" in (pages.TOP / "tests" / f"{path}.py").read_text(), path


def test_what_docstrings_name_of_modules_and_classes_is_there() -> None:
    """As `book.claimed.read` and `Status.prepare`; other languages have names, too."""
    texts = {path: path.read_text() for top in SOURCES[:3] for path in (pages.TOP / top).rglob("*.py")}
    has: dict[str, set[str]] = {"cel": {"bind"}}
    for path, text in texts.items():
        parts = re.findall(r"(?:def |class |self\.)(\w+)|^([A-Z_]+)\b.* = |^    (\w+): ", text, re.MULTILINE)
        module = path.parent.name if path.stem == "__init__" else path.stem
        for name in (module, *re.findall(r"^class (\w+)", text, re.MULTILINE)):
            has.setdefault(name, {"py"}).update("".join(part) for part in parts)
    named = {pair for text in texts.values() for pair in re.findall(r"`(?:\w+\.)*(\w+)\.(\w+)`", text)}
    assert len(named) > 25
    assert [f"{owner}.{name}" for owner, name in sorted(named) if name not in has.get(owner, ())] == []


@pytest.mark.parametrize(
    ("link", "fine"),
    [
        ("a.md", True),
        ("b.md", False),
        ("a.md#two-words", True),
        ("a.md#two", False),
        ("#here", True),
        ("../a.md", False),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, link: str, fine: bool) -> None:
    (tmp_path / "a.md").write_text("# A\n## Two `words`\n")
    (tmp_path / "page.md").write_text(f"# Here\n[x]({link}) and [y](https://example.org/#none)\n")
    assert (pages.broken(tmp_path / "page.md") == []) == fine


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
        assert not re.search(r"^[ \t]+```", page.read_text(), re.MULTILINE), "a fence that no test sees"


def pictures(name: str) -> list[str]:
    return [b.text for b in pages.blocks((pages.TOP / f"docs/{name}.md").read_text()) if b.info == "mermaid"]


@pytest.mark.parametrize(("name", "place"), [(name, place) for name in PICTURED for place in range(PICTURED[name])])
def test_pictures_are_whole(name: str, place: int) -> None:
    """Each node has its text where it comes first; no Mermaid is at hand to draw them."""
    assert len(pictures(name)) == PICTURED[name]
    head, *lines = pictures(name)[place].splitlines()
    assert head == "flowchart TD"
    told: set[str] = set()
    for line in lines:
        edge = EDGE.match(line)
        assert edge, line
        for node in edge.groups():
            known = re.match("[a-z]+", node)
            assert known
            assert (known[0] == node) == (known[0] in told), line
            told.add(known[0])


@pytest.mark.parametrize("page", [*TASKS, SYMPTOMS], ids=lambda page: page.name)
def test_what_cannot_be_run_says_so(page: Path) -> None:
    """Commands are run, or stand behind a sentence that says that they are not; pages of tasks are short."""
    text = page.read_text()
    for before in re.split(r"^```sh not-here$", text, flags=re.MULTILINE)[:-1]:
        assert re.search(r"not run here|not at hand|Not run here", before[-400:]), before[-200:]
    words = re.sub(r"^```mermaid\n.*?^```\n\n", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(words.splitlines()) <= (LONG if page.stem == "kubernetes" else SHORT) or page == SYMPTOMS
    assert pages.stages(text) <= {"fresh", "stale", "docker"}


def test_readme_s_costs_are_those_of_the_page() -> None:
    """Both are written by bench/publish."""
    page, readme = ((pages.TOP / name).read_text() for name in ("docs/performance.md", "README.md"))
    rows = re.findall(r"ms \| (\d+) ms \|$", page, re.MULTILINE)
    told = re.search(r"starts (\d+) ms later.* (\d+) to (\d+) ms over", readme, re.DOTALL)
    assert told
    assert [*told.groups()] == rows[:3]


def test_settings_are_valid(tmp_path: Path) -> None:
    found = [block.text for page in pages.PAGES for block in pages.blocks(page.read_text()) if "config" in block.info]
    assert len(found) == 6
    for text in found:
        (tmp_path / "config.toml").write_text(text)
        policy.load(str(tmp_path / "config.toml"))
