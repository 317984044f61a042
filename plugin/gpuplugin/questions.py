"""What kubelet is asked again and again: whether it has what it was told, and who has what is gone.

Out of scope: how it is asked (podresources.py), what it is told (registry.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from gpuplugin import changes, podresources, sockets
from gpuplugin.v1beta1 import KUBELET_SOCKET
from gpushim.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.changes import Devices, There
    from gpuplugin.registry import Registry
    from gpuplugin.resources import Device

ASK = 10.0  # seconds between questions to kubelet, at most
TICK = 1.0  # seconds between looks at other plugins' sockets, and to the first question after a change
QUIET = 10.0  # seconds after an Allocate in which nothing is taken off the list
STARTS, UNSAID = "a pod that starts", "pods, of which kubelet (pod-resources) says nothing"


class Questions:
    """The questions.

    Args:
        registry: what kubelet was told.
        kubelet_dir: returns kubelet's directory, which settings may change.
    """

    def __init__(self, registry: Registry, kubelet_dir: Callable[[], str]) -> None:
        self._registry, self._kubelet_dir = registry, kubelet_dir
        self._asked = False  # what pods had before this process started
        self._due, self._pause = 0.0, TICK  # time.monotonic() of the next question; seconds to that after

    async def keep(self) -> None:
        """Ask as long as the plugin runs.

        Sooner when a plugin's socket has come or gone: it may be a stranger with the same resource.
        """
        others = sockets.others(self._folder())
        while True:
            await asyncio.sleep(TICK)
            found = sockets.others(self._folder())
            if found != others:  # inotify may not have told
                others = found
                self.doubt()
            now = time.monotonic()
            if now >= self._due:
                self._due, self._pause = now + self._pause, min(2 * self._pause, ASK)
                await self._remind()
                await self._drop()

    async def settled(self, wanted: Devices, there: There) -> dict[str, list[Device]]:
        """List what kubelet is to be told, where pods may have devices in another way: as `changes.settled`.

        What was given out just now counts as a pod's until kubelet lists the pod. If kubelet does not say who has
        what, or has just started and may not know all pods, all that it was told may be a pod's.
        """
        served = {name: one.resource.devices for name, one in self._registry.served.items()}
        if self._asked and not changes.changing(served, wanted, there):
            return {name: [*row] for name, row in wanted.items()}
        pods = await podresources.pods(self._kubelet_dir())
        unsaid = pods is None or self._starts()
        self._asked = self._asked or pods is not None
        held = pods or {}
        served = {name: one.resource.devices for name, one in self._registry.served.items()}
        for name, one in self._registry.served.items():
            row = held.setdefault(name, {})
            started = one.resource.under_way([*row], QUIET)
            for key in served[name] if unsaid else ():
                row.setdefault(key, UNSAID)
            row.update(dict.fromkeys(started, STARTS))
        return changes.settled(served, wanted, held, there)

    def _starts(self) -> bool:
        """Say whether kubelet, which makes its socket when it starts, has done so just now."""
        try:
            return 0 <= time.time() - os.stat(f"{self._folder()}/{KUBELET_SOCKET}").st_mtime < QUIET
        except OSError:
            return True

    def doubt(self) -> None:
        """Take note that another plugin has come or gone."""
        self._due, self._pause = 0.0, TICK
        for one in self._registry.served.values():
            one.endpoint.doubted = True

    def _folder(self) -> str:
        return self._kubelet_dir() + "/device-plugins"

    async def _remind(self) -> None:
        """Register anew what kubelet reads the list of and has nothing of: another plugin's end made it forget."""
        served = self._registry.served
        told = {name: one.resource.well for name, one in served.items() if one.endpoint.settled}
        has = await podresources.allocatable(self._kubelet_dir()) if any(told.values()) else None
        if has is None:
            return
        for name, well in told.items():
            one = served.get(name)
            if one and one.endpoint.settled and well and well.isdisjoint(has.get(name, ())):
                logger.warning("kubelet has no device of %s, and is told again", name)
                one.endpoint.forgotten()

    async def _drop(self) -> None:
        """Take devices off the list that the host has not, no pod has, and no Allocate can be under way for.

        They are refused, and told as Unhealthy, from the moment they were missed. The last Allocate that got one was
        answered before that, QUIET seconds ago or more, and kubelet has listed its pod since.
        """
        served = self._registry.served
        ripe = {
            name: one.resource.gone
            for name, one in served.items()
            if one.resource.gone and one.endpoint.told and one.resource.idle > QUIET
        }
        held = await podresources.pods(self._kubelet_dir()) if ripe else None
        if held is None:
            return
        for name, gone in ripe.items():
            one = served.get(name)
            if one and one.resource.idle > QUIET:
                one.resource.drop(gone & one.resource.gone - held.get(name, {}).keys())
                if one.resource.devices:
                    one.tell()
                else:
                    self._registry.retire(name)
