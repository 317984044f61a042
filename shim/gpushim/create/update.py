"""A container's update, over crun: the container keeps the devices that a create gave it.

The engine sends the device rules of its own spec, without what a create added: containerd's CRI does so for
kubelet's CPU manager and for a resize, Podman for its `update`. runc ignores rules there, so nobody relies on them;
crun would replace all of the container's rules by them. So they are removed before crun gets the update.

The launcher comes here only if the container's config.json, of which crun keeps a copy with its state, has a word
that may concern a GPU. Not on the create path. Out of scope: the rest of an update.
"""

from __future__ import annotations

import posix

from gpushim.ground import bounds, fastjson
from gpushim.ground.errors import BUNDLE, GpushimError
from gpushim.oci import bundle, edits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def keep_devices(args: list[str], state: str) -> list[str]:
    """Remove the device rules from an update of a container with devices of gpushim's; returns crun's new arguments.

    What they call stdin is then a file without these rules; `state` is the directory of crun's copy of config.json.

    Raises:
        GpushimError: that config.json cannot be read, or the update is too large.
    """
    source = resources(args)
    path = state + "/config.json"
    if source is None or not added(fastjson.loads(bundle.read(path)[0], path)):
        return args
    number, option, file = source
    try:
        data = _read(file)
    except OSError:
        return args  # crun reports it
    fd = posix.memfd_create("resources", 0)
    with open(fd, "wb", closefd=False) as resource:
        resource.write(without_devices(data))
    posix.lseek(fd, 0, 0)
    posix.dup2(fd, 0)
    posix.close(fd)
    return [*args[:number], option + "-", *args[number + 1 :]]


def resources(args: list[str]) -> tuple[int, str, str] | None:
    """Find the resources among an update's arguments, as crun does (argp: options may be shortened, the last counts).

    Returns the index of the argument that names the file, the text before the name in it, and the name; or None.
    """
    source = None
    for number in range(args.index("update") + 1, len(args)):
        word, before = args[number], args[number - 1]
        name, equals, file = word.partition("=")
        if word == "--":
            break
        if _means_resources(before) or before == "-r":
            source = (number, "", word)
        elif equals and _means_resources(name):
            source = (number, name + "=", file)
        elif word.startswith("-r") and len(word) > 2:
            source = (number, "-r", word[2:])
    return source


def _means_resources(word: str) -> bool:
    return len(word) > 2 and "--resources".startswith(word)


def added(spec: Any) -> bool:
    """Return whether a create has put devices into a config.json: this host's, with a hook, or those of CDI specs."""
    if not isinstance(spec, dict):
        return False
    process = spec.get("process")
    env = process.get("env") if isinstance(process, dict) else None
    return edits.edited(spec) or (isinstance(env, list) and "NVIDIA_VISIBLE_DEVICES=void" in env)


def without_devices(data: bytes) -> bytes:
    """Remove the device rules from LinuxResources of the OCI runtime spec, JSON; leave what is no JSON object."""
    try:
        resources = fastjson.loads(data, "the update")
    except GpushimError:
        return data
    if not isinstance(resources, dict) or "devices" not in resources:
        return data
    del resources["devices"]
    return fastjson.dumps(resources).encode()


def _read(file: str) -> bytes:
    """Read an update's resources to the end, from a file, a FIFO or "-", stdin."""
    with open(0 if file == "-" else file, "rb", closefd=file != "-") as source:
        data = source.read(bounds.CONFIG_JSON + 1)
    if len(data) > bounds.CONFIG_JSON:
        raise GpushimError(
            f"the update has more than {bounds.CONFIG_JSON} bytes; the engine must write it again", BUNDLE
        )
    return data
