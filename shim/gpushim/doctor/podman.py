"""Checks of Podman, by the files that it reads at each call.

Out of scope: changing them (engines/podman.py).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from gpushim.cdi import specs
from gpushim.doctor import Finding, Host, ask, broken, cdi, listing, ok, ours, skipped, text, warning
from gpushim.engines import dropin, is_ours, podman, programs

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGURE = "gpushim configure podman"


def program(host: Host) -> Iterator[Finding]:
    """Check that Podman is there and runs."""
    path = host.program("podman")
    answer = ask.program([path, "--version"]) if path else None
    if answer is None:
        lies, why = programs.lying("podman", host.top), programs.absent("podman", host.top)
        if "podman" in host.named:
            yield broken(why, "as it says" if lies else "install it")
        else:
            yield warning(why, "as it says") if lies else skipped(why)
    elif answer.code != 0:
        yield broken(f"{path} does not run: {answer.last}", "reinstall it")
    else:
        yield ok(f"{path} is {answer.out.strip()}")


def runtime(host: Host) -> Iterator[Finding]:
    """Check that containers.conf has our runtime, whose program is there, or that CDI does without."""
    if not host.program("podman"):
        return
    found = _runtimes(host)
    for name, paths in found.items():
        good = [path for path in paths if os.access(f"{host.top}{path}", os.X_OK)]
        if good:
            yield ok(f"Podman's runtime {name} is {good[0]}")
        else:
            yield broken(f"Podman's runtime {name} is {paths[0]}, which is not an executable file", CONFIGURE)
    if not found:
        kind = host.settings["cdi"]["kind"]
        known = any(document["kind"] == kind for _, _, document in specs.load(cdi.directories(host))[0])
        told = "containers.conf has no runtime of gpushim's"
        if known:
            yield ok(f"{told}, and {kind} is known to CDI: --device {kind}=all")
        else:
            yield (broken if "podman" in host.named else warning)(told, CONFIGURE)


def hooks(host: Host) -> Iterator[Finding]:
    """Check that the hooks which Podman calls for every container are there."""
    if not host.program("podman"):
        return
    folders = _engine(host).get("hooks_dir") or [podman.HOOKS]
    known = 0
    for path in (path for folder in folders for path in listing(f"{host.top}{folder}")):
        hook = hook_of(path)
        if "gpushim" not in hook and "nvidia-container" not in hook:
            continue
        known += 1
        if not os.access(f"{host.top}{hook}", os.X_OK):
            yield broken(f"{path} names {hook}, which is not there: no container of Podman's starts", f"rm {path}")
        elif ours(f"{host.top}{hook}"):
            yield ok(f"{path} makes Podman call {hook}")
        else:
            yield warning(f"{path} makes Podman call {hook}, which is not gpushim's", f"rm {path}")
    if not known:
        yield skipped("Podman calls no hook for GPUs, and needs none with the runtime or CDI")


def names(host: Host) -> list[str]:
    """List the names under which Podman knows gpushim-runtime."""
    return list(_runtimes(host))


def _runtimes(host: Host) -> dict[str, list[str]]:
    entries = _engine(host).get("runtimes") or {}
    return {name: paths for name, paths in entries.items() if isinstance(paths, list) and any(map(is_ours, paths))}


def _engine(host: Host) -> dict[str, Any]:
    folders = [f"{host.top}{folder}" for folder in podman.SYSTEM_DIRECTORIES]
    if os.geteuid() and not host.top:
        folders.append(os.path.dirname(os.path.dirname(podman.default_config())))
    files = [f"{folder}/containers.conf{suffix}" for folder in folders for suffix in ("", ".d")]
    files += [os.environ["CONTAINERS_CONF"]] if os.environ.get("CONTAINERS_CONF") and not host.top else []
    found: dict[str, Any] = dropin.merged(files).get("engine") or {}
    return found


def hook_of(path: str) -> str:
    """Return the program that a file of a hooks directory names (oci-hooks(5)), or ""."""
    try:
        found = json.loads(text(path))
    except ValueError:
        return ""
    hook = found.get("hook") if isinstance(found, dict) else None
    return str(hook.get("path") if isinstance(hook, dict) else hook or "")
