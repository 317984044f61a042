"""What `docker run --gpus` needs: a program on the PATH of dockerd, by one of two names that are NVIDIA's.

dockerd looks for them when it starts; its version decides which of them counts (seen with 20.10 to 29.7). gpushim's
package has neither, because NVIDIA's has both and two packages cannot have one file; so `configure docker` links each
that nobody has, in a directory that no package writes to. A link is gpushim's if it leads to gpushim-hook.
Out of scope: what the programs do (gpuhook).
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from typing import TYPE_CHECKING

from gpushim.config.policy import SYSTEM_PATH
from gpushim.engines.settings.setup import HOOK as PROGRAM
from gpushim.engines.settings.setup import Link
from gpushim.ground.errors import GpushimError
from gpushim.paths import changeable, places

if TYPE_CHECKING:
    from gpushim.engines.processes.running import Engine

HOOK, CDI_HOOK = "nvidia-container-runtime-hook", "nvidia-cdi-hook"
CDI_SINCE = (29, 2)  # the version of Docker that looks for CDI_HOOK, and for HOOK only if that is missing
SYSTEM, OWN = "/usr/local/bin", (".local/bin", "bin")  # an ordinary user's are below the home directory
PATH = SYSTEM_PATH  # also of systemd's services (DEFAULT_PATH), where no dockerd runs that tells another


def number(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version of Docker's; () if they are none."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if len(parts) == 2 and all(part.isdigit() for part in parts) else ()


def found(engine: Engine | None, name: str) -> str:
    """Return where a dockerd finds a program, as this process opens it; "" if nowhere.

    `engine` is None for one that systemd is going to start.
    """
    for folder in _on_path(engine):
        path = os.path.join(folder, name)
        place = engine.seen(path) if engine else path
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    return ""


def folders(engine: Engine | None) -> list[str]:
    """List the directories for links that are on the PATH of a dockerd; none where it has a root of its own."""
    on_path = _on_path(engine)
    return [] if engine and engine.root else [folder for folder in _own() if folder in on_path]


def expected(engine: Engine | None, hook: str, version: str) -> tuple[list[Link], list[str]]:
    """Work out which links a dockerd lacks for --gpus: of both names, for the version may change.

    A link of ours to a program that others could change counts as none.

    Args:
        engine: the dockerd; None for one that systemd is going to start.
        hook: absolute path of gpushim-hook.
        version: of Docker; "" if it is not known.

    Returns:
        the links, and a note about a name that this version needs, nobody has, and no link can be made for.
    """
    needed = (CDI_HOOK if number(version) >= CDI_SINCE else HOOK,) if number(version) else (CDI_HOOK, HOOK)
    links, notes = [], []
    for name in (CDI_HOOK, HOOK):
        there = found(engine, name)
        if there and not (_is_ours(there) and changeable.by(there)):
            continue
        free = [f"{folder}/{name}" for folder in folders(engine) if _is_ours(f"{folder}/{name}", absent=True)]
        if free:
            links.append(Link(free[0], hook))
        elif name in needed:
            where = f"the PATH of dockerd ({':'.join(_on_path(engine))})"
            notes.append(f"{name} is not on {where}: link it to {hook} there for docker run --gpus")
    return links, notes


def made() -> list[Link]:
    """List the links of gpushim's that are there, as links to be removed."""
    paths = [f"{folder}/{name}" for folder in _own() for name in (CDI_HOOK, HOOK)]
    return [Link(path) for path in paths if _is_ours(path)]


def apply(links: list[Link]) -> tuple[list[Link], list[str]]:
    """Make and remove links.

    Returns:
        those that are now as wished, and for each other one a note with the command that does it.
    """
    done, notes = [], []
    for link in links:
        try:
            _apply(link)
            done.append(link)
        except (GpushimError, OSError) as error:
            reason = f"{link.path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            notes.append(f"{reason}; for docker run --gpus: {link.command}")
    return done, notes


def _apply(link: Link) -> None:
    folder, name = os.path.split(link.path)
    # By another name, as the way to the link itself would lead on to its target.
    with places.place(f"{folder}/.{name}.gpushim", make=bool(link.target)) as place:
        if not _is_ours(link.path, absent=True):
            raise FileExistsError(errno.EEXIST, "it is somebody else's by now")
        with contextlib.suppress(FileNotFoundError):  # one of ours that led nowhere, which a new one need not replace
            os.unlink(name, dir_fd=place.folder)
        if link.target:
            os.symlink(link.target, name, dir_fd=place.folder)


def _on_path(engine: Engine | None) -> list[str]:
    return [folder for folder in (engine.environ.get("PATH", "") if engine else PATH).split(":") if folder[:1] == "/"]


def _own() -> list[str]:
    """List the directories for links, by who runs this."""
    home = os.path.expanduser("~")
    return [SYSTEM] if os.geteuid() == 0 else [f"{home}/{folder}" for folder in OWN if home.startswith("/")]


def _is_ours(path: str, absent: bool = False) -> bool:
    """Say whether a path is a link of gpushim's; `absent` is the answer where there is nothing."""
    try:
        return posixpath.basename(os.readlink(path)) == PROGRAM
    except FileNotFoundError:
        return absent
    except OSError:  # no link
        return False
