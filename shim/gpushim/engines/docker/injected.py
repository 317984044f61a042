"""CDI devices that an engine itself injects into a container, and the container's rootfs.

Both are read from what `inspect` of the engine's client says. Out of scope: what gpushim-runtime then does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpushim.cdi import specs
from gpushim.ground import bounds
from gpushim.ground.errors import GpushimError, quote
from gpushim.oci.selection import is_qualified

SPEC_DIRECTORIES = specs.DIRECTORIES


@dataclass
class Found:
    """A container or image, as explain takes it.

    Attributes:
        spec: the parts of a config.json that a request is made of.
        origins: who set a variable, mount or annotation, by its name; also by NAME=VALUE of a variable that is set
            several times.
        notes: sentences about the way in which the engine brings GPUs, or does not.
        rootfs: absolute path of the rootfs on the host; "" if it is not known, None if the spec names it.
        by_hook: the engine calls the hook, and another runtime than gpushim-runtime.
    """

    spec: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rootfs: str | None = ""
    by_hook: bool = False

    def add(self, entry: str, who: str) -> None:
        """Add the variable NAME=VALUE behind all others, and who sets it."""
        self.spec["process"]["env"].append(entry)
        self.origins[entry] = self.origins[variable(entry)] = who


def variable(entry: str) -> str:
    """Return the name in NAME=VALUE."""
    return entry.partition("=")[0]


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
