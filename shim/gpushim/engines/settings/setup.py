"""What an engine is to be set to, and what its module would do for that.

processes/table.py has a row for each engine. Its module or package NAME has two functions, which `gpushim configure`
calls:

    plan(options) -> Plan                  what to change, as plain data; nothing is written
    verify(options, planned) -> list[str]  ask the engine; one sentence for each thing that is missing

and what the doctor's check_NAME.py asks of it. Out of scope: printing (cli/configure.py).
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpushim.decision import decide
from gpushim.ground import bounds
from gpushim.ground.errors import NOT_FOUND, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpushim.engines.processes.running import Engine
    from gpushim.engines.settings.files import Change

PROGRAM = "gpushim-runtime"
HOOK = "gpushim-hook"


@dataclass(frozen=True)
class Options:
    """What somebody wants of an engine's settings.

    Attributes:
        program: absolute path of gpushim-runtime; "" where nothing is to be added.
        name: of the runtime, as users of the engine will write it.
        config: absolute path of the settings to edit; "" for those that the engine reads.
        default: whether containers get the runtime without asking for it.
        cdi: whether the engine is to inject CDI devices.
        hook: absolute path of the hook to register too; "" for none.
        remove: take back instead.
        force: change an entry of the same name that somebody else made, or remove one that containers need.
        files_only: look at no process: the settings are in the usual files.
        only_needed: of gpushim's other runtimes, leave those that containers need, and no more.
    """

    program: str = ""
    name: str = "nvidia"
    config: str = ""
    default: bool = False
    cdi: bool = False
    hook: str = ""
    remove: bool = False
    force: bool = False
    files_only: bool = False
    only_needed: bool = False


@dataclass(frozen=True)
class Link:
    """A link to be made, or to be removed.

    Attributes:
        path: absolute.
        target: absolute; "" to remove the link.
    """

    path: str
    target: str = ""

    @property
    def command(self) -> str:
        return shlex.join(["ln", "-s", self.target, self.path] if self.target else ["rm", "-f", self.path])


@dataclass(frozen=True)
class Plan:
    """What an engine's module found and would do.

    Attributes:
        file: absolute path, as this process opens it, of the file that has gpushim's runtime, or would have it; users
            are told of it, and an engine that started before it changed has not read it.
        changes: one for each file that is meant, in the order in which they are made, be it as wished already or not.
        links: to be made or removed after them.
        notes: sentences for the user.
        engine: the running engine that reads these settings, if one does.
        stopped: name of the service that will read them once it is started, where that is not the engine's own.
        stays: by the name of a runtime of gpushim's that is left, because containers need it, the sentence for that.
        by_hand: commands that do what `changes` do, where there is no gpushim; none if they only remove files.
        check: raises GpushimError if the engine would not start with what these leave; before they are made.
    """

    file: str
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    engine: Engine | None = None
    links: list[Link] = field(default_factory=list)
    stopped: str = ""
    stays: dict[str, str] = field(default_factory=dict)
    by_hand: list[str] = field(default_factory=list)
    check: Callable[[], None] = field(default=lambda: None, compare=False)

    @property
    def changed(self) -> list[Change]:
        return [change for change in self.changes if change.new != change.old]


def stays(paths: Iterable[str]) -> list[str]:
    """Return which of gpushim's files beside an engine's settings stay where --config names one file."""
    return [f"{path} stays: --config is about one file; --remove without it takes all away" for path in paths]


def is_ours(program: object) -> bool:
    """Return whether a program in an engine's settings is gpushim-runtime, by its name alone.

    This decides what may be edited; `executes_ours` says which program an engine executes.
    """
    return isinstance(program, str) and posixpath.basename(program) == PROGRAM


def check_entry(path: str, name: str, program: object, ours: bool, force: bool) -> None:
    """Refuse to replace somebody else's runtime, unless forced to.

    Args:
        program: that it runs now; None if there is no such runtime.
        ours: whether `program` is gpushim-runtime.
        force: replace it all the same.
    """
    if program is not None and not ours and not force:
        raise GpushimError(
            f"{path}: the runtime {name} is {quote(str(program))}; take another --runtime-name, or replace it with "
            "--force"
        )


def check_default(title: str, key: str, defaults: Sequence[tuple[str, object]], removed: Collection[str]) -> None:
    """Refuse to take back a runtime that a line of others names as the default.

    Args:
        title: the engine's name, for the sentence.
        key: of the default runtime's name.
        defaults: path of each file that names one, in the order in which the engine reads them, with the name.
        removed: names of the runtimes that go, without those that the engine has by itself.

    Raises:
        GpushimError: the engine would not start with what is left.
    """
    path, name = defaults[-1] if defaults else ("", "")
    if str(name) in removed:
        raise GpushimError(
            f"{path}: {key} is {quote(str(name))}, which goes with gpushim's entry, and {title} does not start "
            "without it; remove that line, then try again"
        )


def executes_ours(program: str, engine: Engine | None = None) -> bool:
    """Return whether a program in an engine's settings is gpushim-runtime, or leads to it where the engine looks."""
    return is_ours(program) or leads_to_ours(engine.executable(program) if engine else program)


def leads_to_ours(path: str) -> bool:
    """Return whether an absolute path is gpushim-runtime or leads to it, as the names of gpushim-nvidia-compat do."""
    for _ in range(bounds.LINKS if path.startswith("/") else 0):
        if is_ours(path):
            return True
        try:
            path = posixpath.join(posixpath.dirname(path), os.readlink(path))
        except OSError:
            return False
    return False


def installed(name: str, path: str = "") -> str:
    """Return the absolute path of PROGRAM or HOOK: `path`, else the one beside this code, else the packages'.

    Raises:
        GpushimError: it is not there, not executable, or its path is relative: engines have other working
            directories.
    """
    folder = os.path.dirname(decide.hook_program())
    candidates = [path] if path else [f"{folder}/{name}", f"/usr/bin/{name}"]
    if not candidates[0].startswith("/"):
        raise GpushimError(
            f"{path} is a relative path, which an engine would look for elsewhere; give the whole path"
        )
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise GpushimError(f"{candidates[-1]} is not an executable file; install {name}, or give its path", NOT_FOUND)
