"""The hook alone: an engine called it for a container that went past gpushim-runtime.

So does `docker run --gpus` before Docker 29.2, and a hooks.d directory of Podman or CRI-O. The story is that of
gpushim.create, with the same request, inventory and plan; only the edits land elsewhere: in the container that
runc or crun has created and not started.

Out of scope: deciding anything (gpushim.plan), mounting (live.py), finishing (finish.py).
"""

from __future__ import annotations

import time

from gpuhook import live, roots
from gpuhook.bundled import bundle_of
from gpuhook.confine import confine
from gpuhook.finish import Work, finish
from gpuhook.options import Options
from gpushim import bundle, create, edits, fastjson, plan
from gpushim.errors import BUNDLE, REQUEST, ROOTFS, GpushimError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim import request


def inject(state: dict[str, Any]) -> None:
    """Give a created container what it asks for.

    Args:
        state: what the runtime wrote on stdin (OCI runtime-spec, State).

    Raises:
        GpushimError: the request is malformed or cannot be met, or config.json cannot be read.
    """
    started = time.monotonic()
    ignored: list[str] = []
    line: dict[str, Any] = {"container": state.get("id"), "by": edits.HOOK_NAME}
    try:
        directory, spec, wanted, inventory = read(state, ignored)
    except GpushimError as error:
        from gpushim import refusal  # imports json and more

        refusal.record(str(error), line)
        raise
    if wanted is None:
        if ignored:
            create.record(inventory, {"level": "warning", "msg": "no GPU", **line, "ignored": ignored})
        return
    # Nodes come from the device root by themselves here, in a user namespace too.
    facts = {**create.facts(spec, directory), "userns": False}
    line["request"] = f"{wanted.source}={wanted.text}"[:1000]
    try:
        if plan.parts(wanted)[1]:  # their edits reach far beyond what a created container can still be given
            sentence = "devices of CDI specs need gpushim-runtime, or an engine that does CDI itself"
            raise GpushimError(f"{wanted.source} asks for {plan.parts(wanted)[1][0]}, but {sentence}", REQUEST)
        planned, line["gpus"] = plan.plan(wanted, inventory, facts)
        if not inventory["policy"]["hook"]["device-rules"]:
            planned = [edit for edit in planned if edit[0] != "rule"]
            ignored.append("no device rules are written while [hook] device-rules is false")
        confine(inventory["policy"]["log"]["file"])  # not before: a refresh needs more than a hook
        put(planned, spec, state["pid"], inventory["driver"]["dev-root"])
    except GpushimError as error:  # crun hands on the exit code of a hook, and nothing of what it says
        create.record(inventory, {"level": "error", "msg": str(error), **line})
        raise
    line["milliseconds"] = round((time.monotonic() - started) * 1000, 2)
    if ignored:
        line["ignored"] = ignored
    create.record(inventory, {"level": "info", "msg": "GPU container", **line})


def read(
    state: dict[str, Any], ignored: list[str]
) -> tuple[str, dict[str, Any], request.Request | None, dict[str, Any]]:
    """Read what a created container asks for, and still needs.

    Args:
        state: as `inject` takes it.
        ignored: as create.find_request takes it.

    Returns:
        the bundle's directory, its config.json, and what create.find_request returns.

    Raises:
        GpushimError: as `inject`.
    """
    directory = bundle_of(state)
    path = directory + "/config.json"
    spec = fastjson.loads(bundle.read(path)[0], path)
    if not isinstance(spec, dict):
        raise GpushimError(f"{path} is not a JSON object", BUNDLE)
    bundle.check_spelling(spec, path)
    if edits.edited(spec):
        return directory, spec, None, {}
    return directory, spec, *create.find_request(spec, ignored)


def put(planned: list[tuple[str, Any]], spec: dict[str, Any], pid: int, dev_root: str) -> None:
    """Let a plan land in a created container, and finish it.

    Args:
        planned: edits.
        spec: the container's config.json, which tells what it has already; changed on the way.
        pid: of its process.
        dev_root: absolute path of the directory that the host's nodes lie below.

    Raises:
        GpushimError: the container would lack something of its GPU.
    """
    missing = [edit for edit in planned if edits.apply([edit], spec)]
    (hook,) = [value for kind, value in planned if kind == "hook"]
    land(missing, Options(hook["args"][2:]), pid, dev_root)


def land(planned: list[tuple[str, Any]], options: Options, pid: int, dev_root: str) -> None:
    """Apply edits to a created container, and finish it.

    Args:
        planned: edits.
        options: what is to be finished.
        pid: of its process; 0 if this process is in its mount namespace.
        dev_root: absolute path of the directory that the host's nodes lie below.

    Raises:
        GpushimError: the container would lack something of its GPU.
    """
    root = roots.open_root(roots.process_of(pid) if pid else "", options.rootfs)
    if roots.is_host_root(root):
        raise GpushimError("the container's rootfs is the host's own root directory", ROOTFS)
    work = Work(root, options.log)
    live.apply(planned, work.root, dev_root, work.warn)
    finish(work, options)
