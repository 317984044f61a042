"""Which other plugins of kubelet's listen on this node, and what they say that they are.

A driver of DRA, or a device plugin that kubelet finds by itself, has a socket in kubelet's plugins_registry and tells
its kind and name to who asks, as kubelet does (pkg/kubelet/pluginmanager of Kubernetes). The socket's own name says
nothing, and that of a driver that has ended stays. A device plugin that registers itself has one in device-plugins,
and tells nobody its resource. It is never asked for its list: NVIDIA's would send its news there instead of kubelet.
Only root's processes are believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Optional

import grpc.aio

from gpuplugin.kubelet import sockets
from gpuplugin.kubelet.endpoint import CHANNEL
from gpuplugin.kubelet.v1beta1 import GET_INFO, reader, writer
from gpushim.containers import kubelet
from gpushim.containers.protobuf import WireError
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpuplugin.kubelet.sockets import Identity

    Key = tuple[str, Optional[Identity]]

REGISTRY = "plugins_registry"  # in kubelet's directory
DRIVER = "DRAPlugin"  # a kind
DEADLINE = 1.0  # seconds, as kubelet has it
LATELY = 10.0  # seconds
LIMIT = 1 << 14  # bytes of an answer
LONGEST = 253  # characters of a name
DEEPEST = 2  # directories in each other
ASKED = 64  # sockets at a time: one that hangs costs three descriptors, and nodes have a dozen
_SURROGATE = re.compile("[\ud800-\udfff]")  # of what is not UTF-8


class Plugin(NamedTuple):
    """A plugin that listens; kind and name are "" if it does not say what it is."""

    path: str
    kind: str
    name: str


async def find_rival(plugins: Plugins, kubelet_dir: str, name: str) -> str:
    """Return where another giver's driver of this name listens, "" for none."""
    return next((plugin.path for plugin in await plugins.list_lately(kubelet_dir) if plugin.name == name), "")


class Plugins:
    """The plugins of a node but gpushim's own, each asked once."""

    def __init__(self) -> None:
        self._looked = -LATELY  # time.monotonic()
        self._known: dict[Key, Plugin] = {}
        self._round = 0
        self._tried: dict[Key, int] = {}  # in which turn one was asked in vain
        self._warned: set[str] = set()

    async def list_lately(self, kubelet_dir: str) -> list[Plugin]:
        """Return the plugins of the last look; look where that was not lately."""
        is_late = time.monotonic() - self._looked >= LATELY
        return await self.look(kubelet_dir) if is_late else sorted(self._known.values())

    async def look(self, kubelet_dir: str) -> list[Plugin]:
        """Return the plugins that listen now; takes DEADLINE at most, whatever they do."""
        self._round += 1
        paths, crowded = await asyncio.to_thread(_paths, kubelet_dir)  # sockets of the dead are many, and stay
        self._warn(crowded)
        keys = {(path, sockets.identity(path)) for path in paths}
        self._tried = {key: round_ for key, round_ in self._tried.items() if key in keys}
        # Those that were asked last come last: who hangs hides nobody.
        unknown = sorted(keys - self._known.keys(), key=lambda key: (self._tried.get(key, 0), key[0]))[:ASKED]
        answers = await asyncio.gather(*(ask(path) for path, _ in unknown))
        self._tried.update(dict.fromkeys(unknown, self._round))
        self._known = {key: plugin for key, plugin in self._known.items() if key in keys}
        self._known.update({key: plugin for key, plugin in zip(unknown, answers) if plugin})
        self._looked = time.monotonic()
        return sorted(self._known.values())

    def _warn(self, crowded: Collection[str]) -> None:
        """Log once of a directory that not all of it is looked at."""
        for folder in crowded:
            if folder not in self._warned:
                logger.warning(
                    "%s has more than %s names, so another giver of GPUs may not be noticed; remove the sockets to "
                    "which nobody listens",
                    folder,
                    sockets.NAMES,
                )
        self._warned = {*crowded}


def _paths(kubelet_dir: str) -> tuple[list[str], list[str]]:
    """Return sockets of root's that listen, without our own by their names, and directories of which not all was
    looked at.
    """
    paths, crowded, own_folder = [], [], kubelet.plugins(kubelet_dir)
    for folder, depth in ((f"{kubelet_dir}/{REGISTRY}", DEEPEST), (own_folder, 1)):
        entries = [*islice(_entries(folder, depth), sockets.NAMES)]
        paths += [path for path in entries if sockets.is_socket(path)]
        crowded += [folder] * (len(entries) == sockets.NAMES)
    paths = [path for path in paths if not _SURROGATE.search(path)]  # no name of kubelet's, and none that grpc takes
    foreign = (
        f"{folder}/{name}"
        for folder, _, name in (path.rpartition("/") for path in paths)
        if (sockets.is_foreign(name) if folder == own_folder else not name.startswith(sockets.PREFIX))
    )
    return [*filter(is_believed, foreign)], crowded


def _entries(folder: str, depth: int) -> Iterator[str]:
    """Yield what kubelet looks at: nothing behind a dot or a link."""
    try:
        names = sorted(sockets.names(folder))
    except OSError:
        return
    for path in (f"{folder}/{name}" for name in names if not name.startswith(".")):
        yield path
        if depth > 1 and not os.path.islink(path):
            yield from _entries(path, depth - 1)


def is_believed(path: str) -> bool:
    """Return whether a process of root's listens on a socket; where it is busy, whether root owns the file."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
            client.setblocking(False)
            client.connect(path)
            return sockets.is_root(client)
    except BlockingIOError:
        with contextlib.suppress(OSError):
            return os.lstat(path).st_uid in (0, os.geteuid())
    except OSError:
        pass
    return False


async def ask(path: str) -> Plugin | None:
    """Return the plugin that listens on a socket; None if it is to be asked again."""
    options = (*CHANNEL, ("grpc.max_receive_message_length", LIMIT))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        try:
            data = await channel.unary_unary(GET_INFO, writer("Empty"))({}, timeout=DEADLINE)
            answer = reader("PluginInfo")(data)
        except grpc.aio.AioRpcError as error:
            is_silent = error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
            return Plugin(path, "", "") if is_silent else None
        except WireError:
            return Plugin(path, "", "")
    return Plugin(path, answer["type"][:LONGEST], answer["name"][:LONGEST])
