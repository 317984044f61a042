"""Man pages: of the commands from click's own help texts, of the programs that engines call from docs/man/*.txt.

Each page is one file, NAME.SECTION. Out of scope: compressing and installing them, which packaging does.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / name) for name in ("tools", "shim", "hook", "plugin")]
sys.path += [str(TOP / "vendor")]

import click  # noqa: E402

import page_errors  # noqa: E402
from gpuplugin import cli as device_plugin  # noqa: E402
from gpuplugin import dra_cli as dra_driver  # noqa: E402
from gpushim import __version__, cli  # noqa: E402

SECTIONS = {"1": "User Commands", "8": "System Administration"}
FILES = (
    ("/etc/gpushim/config.toml", "The configuration; every setting has a default."),
    ("/run/gpushim", "What gpushim knows of the host. All of it can be removed; it is made again."),
)
ENVIRONMENT = (
    ("GPUSHIM_CONFIG", "An absolute path instead of /etc/gpushim/config.toml."),
    ("GPUSHIM_STATE", "An absolute path instead of /run/gpushim."),
)
SPECIAL = {"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}  # groff_char(7)


def main(argv: list[str]) -> int:
    """Write all pages.

    Args:
        argv: the directory, or nothing for build/man.
    """
    folder = Path(argv[0]) if argv else TOP / "build" / "man"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(cli.main, TOP / "docs"):
        (folder / name).write_text(text, encoding="ascii")
        print(folder / name)
    return 0


def pages(main: click.Group, docs: Path) -> Iterator[tuple[str, str]]:
    """Make all pages.

    Args:
        main: the group of all commands.
        docs: the directory with man/.

    Yields:
        name of the file and its content, in ASCII.
    """
    ctx = click.Context(main, info_name="gpushim")
    texts = sorted((docs / "man").glob("*.txt"))
    names = [name for name in main.list_commands(ctx) if not _command(main, ctx, name).hidden]
    written = sorted([*(f"{one.PROGRAM}.8" for one in (device_plugin, dra_driver)), *(text.stem for text in texts)])
    others = [f"gpushim-{name}(1)" for name in names] + ["{}({})".format(*page.split(".")) for page in written]
    yield "gpushim.1", _front(main, ctx, names, others)
    for name in names:
        yield f"gpushim-{name}.1", _page_of(_command(main, ctx, name), click.Context(main, info_name="gpushim"), name)
    for text in texts:
        name, section = text.stem.split(".")
        yield text.stem, _header(name, section) + _written(text.read_text(encoding="ascii"))
    for command in (device_plugin.build_command(), dra_driver.command):
        name = str(command.name)
        page = _body(command, click.Context(command, info_name=name), name, "8")
        yield f"{name}.8", page + f".SH SEE ALSO\n{_escaped('gpushim(1), gpushim-refresh(1)')}\n"


def _command(group: click.Group, ctx: click.Context, name: str) -> click.Command:
    command = group.get_command(ctx, name)
    assert command is not None, name
    return command


def _front(main: click.Group, ctx: click.Context, names: list[str], others: list[str]) -> str:
    """Write the page of gpushim itself."""
    listed = "".join(_item(_bold(name), _short(_command(main, ctx, name))) for name in names)
    return (
        _body(main, ctx, "gpushim")
        + f".SH COMMANDS\n{listed}"
        + ".SH FILES\n"
        + "".join(_item(_bold(name), text) for name, text in FILES)
        + ".SH ENVIRONMENT\n"
        + "".join(_item(_bold(name), text) for name, text in ENVIRONMENT)
        + ".SH EXIT STATUS\n"
        + _item("0", "All is well.")
        + "".join(_item(str(code), text) for code, (text, _) in page_errors.meanings().items())
        + f".SH SEE ALSO\n{_escaped(', '.join(others))}\n"
    )


def _page_of(command: click.Command, parent: click.Context, name: str) -> str:
    ctx = click.Context(command, info_name=name, parent=parent)
    text = _body(command, ctx, f"gpushim-{name}")
    if isinstance(command, click.Group):
        text += ".SH COMMANDS\n" + "".join(_subcommand(command, ctx, sub) for sub in command.list_commands(ctx))
    return text + f".SH SEE ALSO\n{_escaped('gpushim(1)')}\n"


def _subcommand(group: click.Group, parent: click.Context, name: str) -> str:
    command = _command(group, parent, name)
    if command.hidden:
        return ""
    ctx = click.Context(command, info_name=name, parent=parent)
    text = f".SS {_usage(command, ctx)}\n" + _paragraphs(command) + _options(command, ctx)
    if isinstance(command, click.Group):
        text += "".join(_subcommand(command, ctx, sub) for sub in command.list_commands(ctx))
    return text


def _body(command: click.Command, ctx: click.Context, page: str, section: str = "1") -> str:
    options = _options(command, ctx)
    return (
        _header(page, section)
        + f".SH NAME\n{_escaped(page)} \\- {_escaped(_short(command))}\n"
        + f".SH SYNOPSIS\n.B {_usage(command, ctx)}\n"
        + f".SH DESCRIPTION\n{_paragraphs(command)}"
        + (f".SH OPTIONS\n{options}" if options else "")
    )


def _header(page: str, section: str) -> str:
    return f'.TH {_escaped(page.upper())} {section} "" "gpushim {__version__}" "{SECTIONS[section]}"\n'


def _usage(command: click.Command, ctx: click.Context) -> str:
    return _escaped(" ".join([ctx.command_path, *command.collect_usage_pieces(ctx)]))


def _short(command: click.Command) -> str:
    """Return the first sentence of a command's help, as a man page's NAME has it."""
    first = " ".join(_help(command).split("\n\n")[0].split())
    return first.rstrip(".")


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").partition("\f")[0].strip()


def _paragraphs(command: click.Command) -> str:
    parts = _help(command).replace("\b\n", "").split("\n\n")
    return "".join(f".PP\n{_escaped(' '.join(part.split()))}\n" for part in parts if part)


def _options(command: click.Command, ctx: click.Context) -> str:
    records = [parameter.get_help_record(ctx) for parameter in command.get_params(ctx)]
    return "".join(_item(_bold(record[0]), record[1]) for record in records if record and record[1])


def _item(term: str, text: str) -> str:
    return f".TP\n{term}\n{_escaped(text)}\n"


def _bold(text: str) -> str:
    return f"\\fB{_escaped(text)}\\fR"


def _written(text: str) -> str:
    r"""Turn a text of docs/man into roff.

    A line without indentation is a section, an indented one belongs to a paragraph; one that more deeply indented
    lines follow is a term, which they explain. Blank lines part paragraphs.
    """
    found = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if not lines[0].startswith(" "):
            found.append(f".SH {_escaped(lines.pop(0))}")
        if len(lines) > 1 and lines[1].startswith(" " * 8):
            found += [".TP", f"\\fB{_escaped(lines.pop(0).strip())}\\fR"]
        elif lines and found[-1][:3] != ".SH":
            found.append(".PP")
        found += [_escaped(line.strip()) for line in lines]
    return "\n".join(found) + "\n"


def _escaped(text: str) -> str:
    text = "".join(SPECIAL.get(char, char) for char in text)
    return "\\&" + text if text[:1] == "." else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
