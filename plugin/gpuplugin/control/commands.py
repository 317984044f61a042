"""Root's commands to the agent: its state, claims as kubelet lists them, and the release of the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.kubelet import podresources
from gpushim.containers.kubelet import OWN_DRIVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from gpuplugin.control.letting_go import LettingGo
    from gpushim.containers.kubelet import Claim

CLAIM = ("namespace", "pod", "container", "name", "driver", "device")  # what is told of who has one


class Commands:
    """The commands, by their words.

    Args:
        letting: releases the GPUs.
        kubelet_dir: returns kubelet's directory.
        status: returns what the agent is like.
    """

    def __init__(
        self, letting: LettingGo, kubelet_dir: Callable[[], str], status: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        self._letting, self._kubelet_dir, self._members = letting, kubelet_dir, status
        self.by_word = {
            "status": self._status, "release": self._release, "take": self._take, "claims": self._claims,
        }  # fmt: skip

    async def _status(self, claims: Iterable[Claim] = ()) -> dict[str, Any]:
        """Return what the agent is like, with these claims beside those that it tells."""
        members = await self._members()
        all_claims = dict.fromkeys([*members.get("claims", ()), *claims])
        rows = [{key: getattr(claim, key) for key in CLAIM} for claim in all_claims]
        return {**members, "claims": rows, **self._letting.state}

    async def _release(self) -> dict[str, Any]:
        await self._letting.let_go()
        listed = await podresources.listed(self._kubelet_dir())
        answer = await self._status(
            claim for claim in (listed.claims if listed else ()) if claim.driver == OWN_DRIVER
        )
        return answer if listed else {**answer, "pods": None}

    async def _take(self) -> dict[str, Any]:
        self._letting.take()
        return await self._status()

    async def _claims(self) -> dict[str, Any]:
        """Return which containers have which claims of all drivers, as kubelet lists them; None if it does not."""
        listed = await podresources.listed(self._kubelet_dir())
        return {"claims": [{**one._asdict(), "uids": [*one.uids]} for one in listed.claims] if listed else None}
