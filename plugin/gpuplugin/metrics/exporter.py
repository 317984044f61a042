"""/metrics, /healthz and /readyz: what is asked for a scrape, how long that may take, and the answers.

A scrape asks the driver through a child, and kubelet, and tells within 2 s what is known by then. Answers are made in
a thread and kept for PACE, so that kubelet's calls do not wait, however often somebody scrapes.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Protocol

from gpuplugin.kubelet import podresources
from gpuplugin.metrics import exposition
from gpuplugin.metrics.container_memory import ContainerMemory
from gpuplugin.metrics.httpd import Answer, Httpd
from gpuplugin.metrics.meter import PACE, STALE, Meter
from gpuplugin.processes import counts
from gpushim.ground.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplugin.health.reason import Reason
    from gpuplugin.health.watch_children import Watchers
    from gpuplugin.kubelet.podresources import Listed
    from gpuplugin.metrics.exposition import FrontState
    from gpuplugin.settings.settings import Settings
    from gpushim.ground.model import Snapshot

    About = Callable[[], tuple[Settings, "Snapshot | None", dict[str, list[Reason]], bool]]

PATIENCE = 1.5  # seconds for the driver and for kubelet
TOKEN = 4096  # bytes of a token, most
NOBODY = "nobody may read metrics until it is"
OPEN_METRICS = "application/openmetrics-text"
WITHOUT = "Python's prometheus-client cannot be used ({}); install python3-prometheus-client; metrics are not served"


class Front(Protocol):
    """What gives out GPUs here: the device plugin, or the DRA driver."""

    def gpus(self) -> bool:
        """Return whether figures of GPUs are exported beside it."""

    def state(self) -> FrontState:
        """Return what it has to tell."""

    def unready(self) -> str:
        """Return why it cannot do its part, or ""."""

    def serves(self, metrics: bool) -> None:
        """Note whether its metrics can be read."""


class Exporter:
    """The server and its answers.

    Args:
        fronts: whose metrics these are.
        watchers: of GPUs' health.
        start: starts a task, and sees to what it ends with.
        held: returns whether the GPUs are released.
        about: returns the settings in force, the snapshot, reasons by UUID, and whether the snapshot is usable.
    """

    def __init__(
        self,
        fronts: Sequence[Front],
        watchers: Watchers,
        start: Callable[[Any], asyncio.Task[Any]],
        held: Callable[[], bool],
        about: About,
    ) -> None:
        self._fronts, self._watchers, self._start, self._held, self._about = fronts, watchers, start, held, about
        self._meter, self._memory, self._httpd = Meter(start, held), ContainerMemory(start, held), Httpd(self._answer)
        self._answers: dict[str, tuple[float, Answer]] = {}  # by what is accepted, with time.monotonic()
        self._making: dict[str, asyncio.Task[Answer]] = {}
        self._pods: tuple[float, Listed | None] = (0.0, None)  # the last that kubelet told
        self._asking: asyncio.Task[None] | None = None  # kubelet
        self._kubelet_up = False  # whether it answered last
        self._last_error = ""
        counts.messages()

    async def attend(self) -> None:
        """Serve where the settings say; end the child if nobody wants it."""
        settings, snapshot, *_ = self._about()
        self._meter.look(snapshot)
        await self._httpd.attend(settings.values["metrics"])
        for front in self._fronts:
            front.serves(bool(settings.values["metrics"]) and not self._httpd.problem)

    @property
    def problem(self) -> str:
        """Return why it does not serve where the settings say; or ""."""
        return self._httpd.problem

    async def stop(self, patient: bool = False) -> None:
        """End the child, as `Child.stop`; unless that is waited for, stop serving."""
        if not patient:
            self._httpd.stop()
        await self._meter.stop(patient)
        await self._memory.stop()

    async def _answer(self, path: str, accept: str, authorization: str) -> Answer:
        if path == "/metrics":
            refused = self._refuse(authorization)
            if refused:
                return refused
            kind = OPEN_METRICS if OPEN_METRICS in accept else ""
            at, answer = self._answers.get(kind, (0.0, None))
            if answer and time.monotonic() - at < PACE:
                return answer
            if kind not in self._making:
                self._making[kind] = self._start(self._make(kind))
            return await asyncio.shield(self._making[kind])
        if path == "/readyz":
            return self._answer_ready()
        return OK if path == "/healthz" else Answer(404, b"there are /metrics, /healthz and /readyz\n")

    def _answer_ready(self) -> Answer:
        """Return whether the fronts do their part; that GPUs are broken is no reason to hold up a rolling update."""
        if clause := "; ".join(filter(None, [front.unready() for front in self._fronts])):
            return Answer(503, f"{clause}\n".encode())
        _, snapshot, reasons, _ = self._about()
        gpu_reasons = [reasons.get(gpu["uuid"], []) for gpu in snapshot["gpus"]] if snapshot else []
        sick = sum(map(bool, gpu_reasons))
        if (
            sick
            and not self._held()
            and all(any(reason.kind == "unwatched" for reason in reasons_) for reasons_ in gpu_reasons)
        ):
            clause = next(reason.text for reason in gpu_reasons[0] if reason.kind == "unwatched")
            return Answer(503, f"no GPU is watched, so all are unhealthy: {clause}\n".encode())
        return Answer(200, f"ok; {sick} of {len(gpu_reasons)} GPUs are unhealthy\n".encode()) if sick else OK

    def _refuse(self, authorization: str) -> Answer | None:
        """Return the refusal, if any; the file is read each time, for whoever made it may replace it."""
        path = str(self._about()[0].values["metrics-token-file"])
        if not path:
            return None
        try:
            with open(path, "rb") as file:
                token = file.read(TOKEN + 1).strip()
        except OSError as error:
            return self._fail(503, f"metrics-token-file {path} cannot be read: {error.strerror}; {NOBODY}")
        if not token or len(token) > TOKEN or token.split() != [token]:
            return self._fail(503, f"metrics-token-file {path} is not one word of at most {TOKEN} bytes; {NOBODY}")
        credentials = authorization.encode("latin-1").partition(b" ")
        if credentials[0].lower() == b"bearer" and hmac.compare_digest(credentials[2].strip(), token):
            return None
        return Answer(401, b"this needs the token of metrics-token-file: Authorization: Bearer TOKEN\n")

    async def _make(self, kind: str) -> Answer:
        try:
            answer = await self._scrape(kind)
        except ImportError as error:
            answer = self._fail(503, WITHOUT.format(error))
        except Exception as error:  # noqa: BLE001 - a scrape ends no plugin
            answer = self._fail(500, f"metrics cannot be collected: {type(error).__name__}: {error}")
        self._answers[kind] = time.monotonic(), answer
        del self._making[kind]
        return answer

    def _fail(self, status: int, sentence: str) -> Answer:
        if sentence != self._last_error:
            logger.error("%s", sentence)
        self._last_error = sentence
        return Answer(status, sentence.encode() + b"\n")

    async def _scrape(self, kind: str) -> Answer:
        if self._tells_gpus():
            await asyncio.gather(self._meter.ask(PATIENCE), self._ask_kubelet(), self._ask_memory())
        accept = f"{OPEN_METRICS}; version=1.0.0" if kind else ""
        body, content = await asyncio.to_thread(exposition.write, self._state(), accept)
        return Answer(200, body, content)

    async def _ask_memory(self) -> None:
        """Ask what containers use, of those that are known from the scrape before."""
        state, folder = self._state(), str(self._about()[0].values["kubelet-dir"])
        await self._memory.ask(PATIENCE, folder, state.snapshot, state.listed, lambda: exposition.holdings(state))

    def _tells_gpus(self) -> bool:
        return any(front.gpus() for front in self._fronts)

    async def _ask_kubelet(self) -> None:
        """Ask kubelet for its pods; an answer that is late counts for the next scrape."""
        if self._asking is None or self._asking.done():
            self._asking = self._start(self._read_pods())
        _, pending = await asyncio.wait([self._asking], timeout=PATIENCE)
        if pending:
            self._kubelet_up = False

    async def _read_pods(self) -> None:
        kubelet_dir = str(self._about()[0].values["kubelet-dir"])
        pods = await podresources.listed(kubelet_dir)
        self._kubelet_up = pods is not None
        if self._kubelet_up:
            self._pods = time.monotonic(), pods

    def _state(self) -> exposition.State:
        _, snapshot, _, usable = self._about()
        at, listed = self._pods
        fronts = [front.state() for front in self._fronts]
        named = [front.hostname for front in fronts if front.hostname]
        return exposition.State(
            fronts=fronts,
            gpus=self._tells_gpus(),
            released=self._held(),
            snapshot=snapshot,
            usable=usable,
            readings=self._meter.readings(),
            xids=self._watchers.xids,
            listed=listed if time.monotonic() - at <= STALE else None,
            asked=self._kubelet_up,
            uses=self._memory.uses(),
            hostname=named[0] if named else os.environ.get("NODE_NAME") or socket.gethostname(),
        )


OK = Answer(200, b"ok\n")
