"""Checks of Podman, by the files that it reads at each call.

Out of scope: changing them (engines/podman.py).
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from typing import TYPE_CHECKING

from gpushim.cdi import specs
from gpushim.doctor import (
    Finding,
    Host,
    broken,
    check_cdi,
    corrected,
    entries,
    ok,
    skipped,
    untrusted,
    warning,
)
from gpushim.engines import podman
from gpushim.engines.processes import ask, programs
from gpushim.engines.settings.setup import is_ours, leads_to_ours
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Iterator


def program(host: Host) -> Iterator[Finding]:
    """Check that Podman is there and runs."""
    path = host.program("podman")
    answer = ask.program([path, "--version"]) if path else None
    if answer is None:
        lies, reason = programs.lying("podman", host.top), programs.absent("podman", host.top)
        reason, fix = (
            (reason.partition("; ")[0], untrusted.program(lies))
            if lies
            else (reason, "install podman (package podman)")
        )
        if "podman" in host.named:
            yield broken(reason, fix)
        else:
            yield warning(reason, fix) if lies else skipped(reason)
    elif answer.code != 0:
        # It reads its settings even to say its version.
        wrong = re.search(r"/[^\s\"\\]+\.conf\b", answer.last)
        fix = corrected(wrong[0]) if wrong else f"reinstall {shlex.quote(path)}"
        yield broken(f"{path} does not run: {answer.last}", _environment() or fix)
    else:
        yield ok(f"{path} is {answer.out.strip()}")


def runtime(host: Host) -> Iterator[Finding]:
    """Check that containers.conf has an executable gpushim-runtime, or that CDI makes it unnecessary."""
    if not host.program("podman"):
        return
    runtimes = _runtimes(host)
    for name, paths in runtimes.items():
        good = [path for path in paths if os.access(f"{host.top}{path}", os.X_OK)]
        if good:
            subject = f"Podman's runtime {name} is {good[0]}"
            yield entries.find_changeable(subject, f"{host.top}{good[0]}", _configure(host, name)) or ok(subject)
        else:
            evidence = f"Podman's runtime {name} is {paths[0]}, which is not an executable file"
            yield broken(evidence, _configure(host, name))
    if not names(host) and "nvidia" not in runtimes:
        kind = host.settings["cdi"]["kind"]
        is_in_cdi = any(document["kind"] == kind for _, _, document in specs.load(check_cdi.directories(host))[0])
        evidence = "containers.conf does not name gpushim-runtime"
        if not is_in_cdi and os.path.lexists(host.state) and not trust.ours(host.state):
            yield skipped(f"{evidence}; whether CDI does without, a refresh decides once state-directory is well")
        elif is_in_cdi:
            yield ok(f"{evidence}, and {kind} is known to CDI: --device {kind}=all")
        else:
            yield (broken if "podman" in host.named else warning)(evidence, _configure(host))


def hooks(host: Host) -> Iterator[Finding]:
    """Check that the hooks which Podman calls for every container are there."""
    if not host.program("podman"):
        return
    effect = "no container of Podman's starts"
    yield from entries.check_hooks("Podman", hook_directories(host), lambda path: f"{host.top}{path}", effect)


def hook_directories(host: Host) -> list[str]:
    folders: list[str] = podman.settings(host.top).get("hooks_dir") or [podman.HOOKS]
    return folders


def names(host: Host) -> list[str]:
    """List the names under which Podman knows gpushim-runtime."""
    return [name for name, paths in _runtimes(host).items() if _ours(host, paths)]


def _runtimes(host: Host) -> dict[str, list[str]]:
    entries = podman.settings(host.top).get("runtimes") or {}
    lists = {name: [str(path) for path in paths] for name, paths in entries.items() if isinstance(paths, list)}
    return {
        name: paths
        for name, paths in lists.items()
        if paths and (_ours(host, paths) or "nvidia" in " ".join([name, *paths]))
    }


def _ours(host: Host, paths: list[str]) -> bool:
    """Return whether the first of these paths that exists, or any if none exists, is gpushim-runtime."""
    present = [path for path in paths if os.access(f"{host.top}{path}", os.X_OK)]
    return leads_to_ours(f"{host.top}{present[0]}") if present else any(map(is_ours, paths))


def _configure(host: Host, name: str = "nvidia") -> str:
    programs = {
        runtime_name: next(filter(is_ours, paths), paths[0]) for runtime_name, paths in _runtimes(host).items()
    }
    return entries.build_command("podman", programs, "", name)


def _environment() -> str:
    """Return the command that gives this user's Podman directories of its own; "" if it has them.

    su and sudo leave those of another user, or none.
    """
    user, home_folder = os.geteuid(), os.environ.get("HOME", "")
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if _own(home_folder) and (not user or _own(folder)):
        return ""
    candidates_of = {
        "HOME": [home_folder, _home(user)],
        **({"XDG_RUNTIME_DIR": [folder, f"/run/user/{user}"]} if user else {}),
    }
    words = [
        f"{name}={next((shlex.quote(candidate) for candidate in candidates if _own(candidate)), '$(mktemp -d)')}"
        for name, candidates in candidates_of.items()
    ]
    return f"export {' '.join(words)} && gpushim doctor podman"


def _home(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return ""


def _own(folder: str) -> bool:
    return folder.startswith("/") and os.path.isdir(folder) and os.stat(folder).st_uid == os.geteuid()


CHECKS = {"podman-program": program, "podman-runtime": runtime, "podman-hooks": hooks}
