"""Which other plugins of kubelet's listen on this node, and what they say that they are.

A driver of DRA, or a device plugin that kubelet finds by itself, has a socket in kubelet's plugins_registry and tells
its kind and name to who asks, as kubelet does (pkg/kubelet/pluginmanager of Kubernetes). The socket's own name says
nothing, and that of a driver that has ended stays. A device plugin that registers itself has one in device-plugins,
and tells nobody its resource. It is never asked for its list: NVIDIA's would send its news there instead of kubelet.
Only root's processes are believed. Out of scope: what follows (allocators.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
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


def is_ours(plugin: Plugin) -> bool:
    """Say whether it is gpushim's own, by the name of its socket, which root has made."""
    return plugin.path.rpartition("/")[2].startswith(sockets.PREFIX)


async def rival(known: Plugins, kubelet_dir: str, name: str) -> str:
    """Return where another giver's driver of this name listens, "" for none.

    Args:
        known: plugins of the node.
        kubelet_dir: kubelet's directory.
        name: the driver's.
    """
    there = await known.look(kubelet_dir)
    return next((one.path for one in there if one.name == name and not is_ours(one)), "")


class Plugins:
    """Those of a node, each asked once."""

    def __init__(self) -> None:
        self._known: dict[Key, Plugin] = {}
        self._turn = 0
        self._tried: dict[Key, int] = {}  # in which turn one was asked in vain
        self._warned: set[str] = set()

    async def look(self, kubelet_dir: str) -> list[Plugin]:
        """List the plugins that listen now; takes a look at the names, and DEADLINE at most, whatever they do."""
        self._turn += 1
        paths, crowded = await asyncio.to_thread(_paths, kubelet_dir)  # sockets of the dead are many, and stay
        self._tell(crowded)
        there = {(path, sockets.identity(path)) for path in paths}
        self._tried = {key: turn for key, turn in self._tried.items() if key in there}
        # Those that were asked last come last: who hangs hides nobody.
        new = sorted(there - self._known.keys(), key=lambda key: (self._tried.get(key, 0), key[0]))[:ASKED]
        answers = await asyncio.gather(*(asked(path) for path, _ in new))
        self._tried.update(dict.fromkeys(new, self._turn))
        self._known = {key: one for key, one in self._known.items() if key in there}
        self._known.update({key: one for key, one in zip(new, answers) if one})
        return sorted(self._known.values())

    def _tell(self, crowded: Collection[str]) -> None:
        """Say once of a directory that not all of it is looked at."""
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
    """List sockets of root's that listen, and directories of which not all was looked at."""
    found, crowded, own = [], [], kubelet.plugins(kubelet_dir)
    for folder, deep in ((f"{kubelet_dir}/{REGISTRY}", DEEPEST), (own, 1)):
        entries = [*islice(_entries(folder, deep), sockets.NAMES)]
        found += [path for path in entries if sockets.is_socket(path)]
        crowded += [folder] * (len(entries) == sockets.NAMES)
    found = [path for path in found if not _SURROGATE.search(path)]  # no name of kubelet's, and none that grpc takes
    strange = (path for path in found if not path.startswith(f"{own}/") or sockets.foreign(path[len(own) + 1 :]))
    return [*filter(believed, strange)], crowded


def _entries(folder: str, deep: int) -> Iterator[str]:
    """List what kubelet looks at: nothing behind a dot or a link."""
    try:
        names = sorted(sockets.names(folder))
    except OSError:
        return
    for path in (f"{folder}/{name}" for name in names if not name.startswith(".")):
        yield path
        if deep > 1 and not os.path.islink(path):
            yield from _entries(path, deep - 1)


def believed(path: str) -> bool:
    """Say whether a process of root's listens on a socket; of one that is busy the file's owner says it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
            client.setblocking(False)
            client.connect(path)
            return sockets.of_root(client)
    except BlockingIOError:
        with contextlib.suppress(OSError):
            return os.lstat(path).st_uid in (0, os.geteuid())
    except OSError:
        pass
    return False


async def asked(path: str) -> Plugin | None:
    """Ask what listens on a socket; None if that is to be asked again."""
    options = (*CHANNEL, ("grpc.max_receive_message_length", LIMIT))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        try:
            data = await channel.unary_unary(GET_INFO, writer("Empty"))({}, timeout=DEADLINE)
            answer = reader("PluginInfo")(data)
        except grpc.aio.AioRpcError as error:
            silent = error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
            return Plugin(path, "", "") if silent else None
        except WireError:
            return Plugin(path, "", "")
    return Plugin(path, answer["type"][:LONGEST], answer["name"][:LONGEST])
