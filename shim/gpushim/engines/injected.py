"""CDI devices that an engine itself injects into a container, and the container's rootfs.

Both are read from what `inspect` of the engine's client says. Out of scope: what gpushim-runtime then does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushim import bounds
from gpushim.cdi import specs
from gpushim.errors import GpushimError, quote
from gpushim.selection import is_qualified

if TYPE_CHECKING:
    from gpushim.engines.inspect import Found

SPEC_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")


def add(found: Found, engine: str, names: list[str], directories: list[str]) -> None:
    """Add the variables of CDI devices, which come behind all others, and a note for each device.

    Args:
        found: the container.
        engine: that injects the devices.
        names: qualified names of the devices.
        directories: where the engine looks for specs; [] means the usual ones.
    """
    for name in names:
        try:
            ((path, document, device),) = specs.find([name], directories or SPEC_DIRECTORIES)
        except GpushimError as error:
            found.notes.append(f"{engine} itself injects the CDI device {quote(name)}, and will refuse: {error}")
            continue
        found.notes.append(f"{engine} itself injects the CDI device {quote(name)}, as {path} says")
        for part in (document, device):
            for entry in (part.get("containerEdits") or {}).get("env") or ():
                found.add(entry, f"CDI device {name} of {path}")


def podmans(answer: dict[str, Any]) -> list[str]:
    """List the CDI devices of a container from `podman inspect`, which has them only in the CreateCommand."""
    config = answer.get("Config")
    words = config.get("CreateCommand") if isinstance(config, dict) else None
    words = [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
    image = str(answer.get("ImageName") or "")
    words = words[: words.index(image)] if image in words else words  # the rest is the container's own command
    given = [after for word, after in zip(words, words[1:]) if word == "--device"]
    given += [word.partition("=")[2] for word in words if word.startswith("--device=")]
    return [name for name in dict.fromkeys(given) if is_qualified(name)][: bounds.DEVICES]


def rootfs(answer: dict[str, Any]) -> str:
    """Return the rootfs of a container or image from `inspect`: where it is mounted, or its only layer; else "".

    Links and whiteouts work across layers, so one of several layers does not tell what is in the rootfs.
    """
    driver = answer.get("GraphDriver")
    data = driver.get("Data") if isinstance(driver, dict) else None
    data = data if isinstance(data, dict) else {}
    state = answer.get("State")
    running = isinstance(state, dict) and state.get("Running") is True
    path = data.get("MergedDir") if running else None if data.get("LowerDir") else data.get("UpperDir")
    return path if isinstance(path, str) and path.startswith("/") else ""
