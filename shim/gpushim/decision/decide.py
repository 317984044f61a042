"""One decision: what a container asks for, what it gets and why, what it does not get, and the log's line about it.

Whoever needs to know what a container gets asks here: a create, the hook alone, nvidia-container-cli, explain, and
the writer of CDI specs. The steps are `ask` (request.py, under the table of authorization.py, with a snapshot that is
true now) and `plan` (plan.py).

On the create path: imports only its siblings. Out of scope: how edits land (edits.py), and what else a refusal does.
"""

from __future__ import annotations

import time

from gpushim.decision import plan
from gpushim.ground import bounds, fastjson, system
from gpushim.ground.errors import BUNDLE, NOT_FOUND, GpushimError
from gpushim.inventory import ensure
from gpushim.oci import request, selection
from gpushim.oci.bundle import absolute
from gpushim.paths.logfile import append, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Sequence

    from gpushim.decision.memory import Limit
    from gpushim.ground.model import Device, Snapshot
    from gpushim.oci.bundle import Bundle
    from gpushim.oci.device_names import Item
    from gpushim.oci.edits import Edit
    from gpushim.oci.request import Request

    Renew = Callable[[str, str], Snapshot]  # paths of config.toml and of the state directory


class Decision:
    """What one container asks for and gets.

    Args:
        about: whom it is about, in the log's words: {"container": its id} and more.
        started: time.monotonic() when the work for it began; None: now.

    Attributes:
        request: what it asks for; None if that is nothing that may be honoured.
        inventory: the snapshot that the request was held against; empty if none could be had.
        edits: what it gets, each with its reasons.
        devices: what each item of the request means, by its text.
        limits: of GPU memory, each with its source.
        ignored: a sentence for each thing that it asks for and does not get.
        effects: what each thing that was looked at does (see request.read).
        refusal: why it is refused, or "".
    """

    __slots__ = (
        "_about", "_started", "devices", "edits", "effects", "ignored", "inventory", "limits", "refusal", "request",
    )  # fmt: skip

    def __init__(self, about: Optional[dict[str, Any]] = None, started: Optional[float] = None) -> None:
        self._about = about or {}
        self._started = time.monotonic() if started is None else started
        self.request: Optional[Request] = None
        self.inventory: Snapshot = {}  # type: ignore[typeddict-item]  # until there is one
        self.edits: list[Edit] = []
        self.devices: dict[str, list[Device]] = {}
        self.limits: list[Limit] = []
        self.ignored: list[str] = []
        self.effects: dict[str, str] = {}
        self.refusal = ""

    def ask(self, spec: dict[str, Any], renew: Optional[Renew] = None) -> Optional[Request]:
        """Read the request under the policy in force, with an inventory that is true now.

        A container that asks for nothing is never harmed by trouble of ours: it does not wait for a refresh, unless
        the policy itself has changed, and not even then does a failing one stop it. Nor does one wait that asks for
        CDI devices of others alone: what the inventory has to say does not concern it.

        Args:
            renew: called instead of `inventory.renew.snapshot` for an inventory that is true now.

        Returns:
            the request, or None.

        Raises:
            GpushimError: the request is malformed, or the host's inventory cannot be had for it.
        """
        config, state = system.config_path(), system.state_dir()
        self.inventory, stale = ensure.last(config, state)
        if stale != "policy":
            request = self._read(spec)
            if request is None or not stale or request.own is None:
                return request
        try:
            if renew:
                self.inventory = renew(config, state)
            else:
                from gpushim.inventory.renew import snapshot  # some 10 ms, beside the hundreds of a refresh

                self.inventory = snapshot(config, state)
        except GpushimError:
            if stale == "policy":
                from gpushim.decision import without_config  # imports json and more, and is for trouble only

                if not without_config.may_ask(spec, config, state):
                    return None
            raise
        return self._read(spec)

    def _read(self, spec: dict[str, Any]) -> Optional[Request]:
        self.ignored, self.effects = [], {}
        return self.take(request.read(spec, self.inventory["policy"], self.ignored, self.effects))

    def take(self, request: Optional[Request]) -> Optional[Request]:
        """Take a request as it is, for the inventory that is set; returns it."""
        self.request = request
        if request is not None:
            self.ignored = request.ignored
            if request.imex:
                ensure.look_at_channels(self.inventory, [*request.imex])
        return request

    def plan(self, bundle: Bundle) -> None:
        """Decide what the request brings to what `of_bundle` returned, or as much as is known of it.

        Raises:
            GpushimError: the request cannot be met in full.
        """
        if self.request is not None:
            self.edits, self.devices, self.limits = plan.plan(self.request, self.inventory, bundle)

    def low_level(self) -> str:
        """Return the low-level runtime; looks for it if the last refresh has not found one.

        Raises:
            GpushimError: there is none.
        """
        if self.inventory["runtime"]:
            return self.inventory["runtime"]
        from gpushim.config import policy

        return policy.low_level(self.inventory["policy"]["runtime"]["low-level"])

    def line(self) -> dict[str, Any]:
        """Return the log's line about this container; empty if it asked for nothing."""
        if self.refusal:
            line = {"level": "error", "msg": self.refusal[: bounds.LOG_TEXT], **self._about}
        elif self.request is not None:
            line = {"level": "info", "msg": "GPU container", **self._about, "gpus": self.uuids()}
        elif self.ignored:
            line = {"level": "warning", "msg": "no GPU", **self._about}
        else:
            return {}
        if self.request is not None:
            line["request"] = f"{self.request.source}={self.request.text}"[:1000]
        if self.refusal:
            return line
        if self.request is not None:
            if self.limits:
                line["limits"] = [str(limit) for limit in self.limits]
            line["milliseconds"] = round((time.monotonic() - self._started) * 1000, 2)
        if self.ignored:
            unlisted = len(self.ignored) - bounds.LISTED  # an image can name thousands of channels
            line["ignored"] = (
                [*self.ignored[: bounds.LISTED], f"and {unlisted} more"] if unlisted > 0 else self.ignored
            )
        return line

    def uuids(self) -> list[str]:
        """List the UUIDs of the GPUs chosen, then of the MIG instances, each once."""
        chosen = {id(device): device for devices in self.devices.values() for device in devices}.values()
        return plan.names(sorted(chosen, key=lambda device: "gi" in device))

    def record(self, refusal: str = "") -> None:
        """Write the line into the log that [log] names, with the refusal if there is one."""
        self.refusal = refusal
        line = self.line()
        if self.inventory and line:
            append(self.inventory["policy"]["log"]["file"], fastjson.dumps({"time": now(), **line}))
        elif line:
            from gpushim.decision import without_config  # as above

            without_config.record(line)


def of_items(items: list[Item], inventory: Snapshot, hook: str, capabilities: Sequence[str]) -> list[Edit]:
    """Return what a container gets that names some devices: what a CDI spec is to say of them.

    Raises:
        GpushimError: a device cannot be used.
    """
    decision = Decision()
    decision.inventory = inventory
    decision.take(request.Request(selection.CDI_SPEC, "", items, capabilities=capabilities))
    decision.plan({"rootfs": "", "userns": False, "hook": hook})
    return decision.edits


def of_bundle(spec: dict[str, Any], directory: str) -> Bundle:
    """Collect what a plan must know of a bundle; a relative directory is the working directory's, "" is that one.

    Raises:
        GpushimError: config.json names no rootfs.
    """
    root = spec.get("root")
    rootfs = root.get("path") if isinstance(root, dict) else None
    if not isinstance(rootfs, str) or not rootfs:
        raise GpushimError("config.json has no root.path", BUNDLE)
    linux = spec.get("linux")
    spaces = linux.get("namespaces") if isinstance(linux, dict) else None
    listed = spaces if isinstance(spaces, list) else ()  # what else there may be is for runc to refuse
    userns = any(isinstance(space, dict) and space.get("type") == "user" for space in listed)
    facts: Bundle = {"rootfs": absolute(rootfs, directory), "userns": userns, "hook": hook_program()}
    if userns and isinstance(linux, dict):
        facts["gids"] = linux.get("gidMappings")
    return facts


def hook_program() -> str:
    """Return the path of the gpushim-hook that belongs to this code: of a package, a checkout, pip or uv."""
    top, _, last = absolute(__file__).rpartition("/gpushim/")[0].rpartition("/")
    if last.endswith("-packages"):  # TOP/lib/python3.x/site-packages
        return top.rpartition("/lib")[0] + "/bin/gpushim-hook"
    return f"{top}/bin/gpushim-hook" if last == "shim" else "/usr/bin/gpushim-hook"


def gone(low: str) -> GpushimError:
    """Return the refusal where the low-level runtime of this path is not there any more."""
    return GpushimError(f"the low-level runtime {low} is gone; install it, or run gpushim refresh", NOT_FOUND)
