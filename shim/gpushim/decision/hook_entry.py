"""The hook's entry in config.json: what it finishes in a container, as arguments.

On the create path. Out of scope: what a container gets (plan.py).
"""

from __future__ import annotations

from gpushim.oci import hookargs
from gpushim.oci.edits import FILE_OPTIONS, HOOK_ENV, HOOK_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Collection, Iterable

    from gpushim.ground.model import File, Gpu, Hook, Mount, Snapshot
    from gpushim.oci.bundle import Bundle
    from gpushim.oci.request import Request

DISPLAYING = ("display", "graphics")  # capabilities
HOOK_TIMEOUT = 60  # seconds
LIBRARY_OPTIONS = {"library": "--lib", "library32": "--lib32"}


def build_hook(
    request: Request,
    nodes: Collection[str],
    files: Iterable[File],
    inventory: Snapshot,
    bundle: Bundle,
    compat_reason: str,
) -> Hook:
    """Return the hook's entry.

    Args:
        request: of the container.
        nodes: paths of the device nodes that it gets.
        files: of the driver, that it gets.
        inventory: of the host.
        bundle: of the container; without a rootfs it is a device of a CDI spec.
        compat_reason: why the driver's own libcuda counts, or "".
    """
    words, driver, log = hookargs.words, inventory["driver"], inventory["policy"]["log"]["file"]
    args = [HOOK_NAME, "prestart"]
    if bundle["rootfs"]:
        args += words("--rootfs", bundle["rootfs"])
    if log:
        args += words("--log", log)
    args += _file_words(files, driver["root"])
    if compat_reason:
        args += words("--own-libcuda", compat_reason)
    elif "compute" in request.capabilities:
        for option, version in (("--driver", driver["version"]), ("--cuda", driver["cuda"])):
            if version:
                args += words(option, version)
    if driver["params"]:
        args += words("--cover", driver["params"], "/proc/driver/nvidia/params")
    displays = not {*DISPLAYING}.isdisjoint(request.capabilities)
    if displays:
        for gpu in inventory["gpus"]:
            for link in gpu["links"]:
                args += words("--node-link", link)  # made where the node is
    if bundle["rootfs"]:
        args += _words_of_gpus(nodes, displays, inventory)
    else:
        args += _words_of_any_gpus(inventory)
    return {"path": bundle["hook"], "args": args, "env": HOOK_ENV, "timeout": HOOK_TIMEOUT}


def _file_words(files: Iterable[File], root: str) -> list[str]:
    args: list[str] = []
    for file in files:
        if file["kind"] in LIBRARY_OPTIONS:
            args += hookargs.words(LIBRARY_OPTIONS[file["kind"]], file["soname"], file["path"])
        elif file["kind"] == "socket":
            # A low-level runtime would follow its path as root, and this process would wait for who answers there.
            args += hookargs.words("--socket", _on_host(file, root), file["path"])
        for link in file.get("links", ()):
            args += hookargs.words("--link", link)
    return args


def _words_of_gpus(nodes: Collection[str], displays: bool, inventory: Snapshot) -> list[str]:
    """Return how a container is kept from GPUs whose nodes it does not get; it need not even read their UUIDs."""
    args: list[str] = []
    if displays:
        # The mask that the driver takes has 64 bits: GPUs with higher minor numbers stay out of it.
        granted = {gpu["minor"] for gpu in inventory["gpus"] if gpu["node"] in nodes and gpu["minor"] < 64}
        if granted:
            args += hookargs.words("--profile-mask", hex(sum(1 << minor for minor in granted)))
    for gpu in inventory["gpus"]:
        if gpu["pci"] and gpu["node"] not in nodes:
            args += hookargs.words(
                "--cover", inventory["driver"]["empty"], f"/proc/driver/nvidia/gpus/{_proc_name(gpu)}"
            )
    return args


def _words_of_any_gpus(inventory: Snapshot) -> list[str]:
    """Return what a hook of a CDI spec needs, which sees only in the container which GPUs it gets."""
    words, args = hookargs.words, list[str]()
    for gpu in inventory["gpus"]:
        if gpu["pci"]:
            args += words("--gpu", str(gpu["minor"]), _proc_name(gpu))
    bound = {gpu["minor"]: inventory["stamp"]["gpus"].get(_proc_name(gpu)) for gpu in inventory["gpus"]}
    for minor, inode in bound.items():
        if inode:
            args += words("--bound", str(minor), str(inode))
    if any(bound.values()):
        args += words("--bindings", f"{inventory['inputs']['sys']}/bus/pci/drivers/nvidia")
    return args + words("--empty", inventory["driver"]["empty"])


def mount(file: File, root: str) -> Mount:
    """Return the mount of one of the snapshot's files, of a driver below this root."""
    return {
        "destination": file["path"],
        "source": _on_host(file, root),
        "type": "bind",
        "options": FILE_OPTIONS,
    }


def _on_host(file: File, root: str) -> str:
    return file["path"] if root == "/" else root + file["path"]


def by_hook(mounts: Iterable[Mount]) -> list[str]:
    """Return the hook's arguments by which it makes mounts itself.

    Those of a CDI spec engines put in an order of their own, in which one can come to lie on a user's volume.
    """
    words: list[str] = []
    for mount_value in mounts:
        words += hookargs.words("--mount", mount_value["source"], mount_value["destination"])
    return words


def _proc_name(gpu: Gpu) -> str:
    """Return a GPU's PCI address as the kernel names it below /proc: four digits of domain, more if need be."""
    domain, _, address = gpu["pci"].partition(":")
    return f"{domain.lstrip('0'):0>4}:{address}"
