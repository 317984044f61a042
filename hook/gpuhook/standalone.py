"""The hook alone: an engine called it for a container that went past gpushim-runtime.

So does `docker run --gpus` before Docker 29.2, and a hooks.d directory of Podman or CRI-O. It makes the decision of
create.py, and its edits land in the container that runc or crun has created and not started.
"""

from __future__ import annotations

from gpuhook.confine import confine
from gpuhook.inject import apply, roots
from gpuhook.inject.roots import bundle_of
from gpuhook.loader.finish import Work, finish
from gpuhook.loader.options import Options
from gpushim.decision.decide import Decision, of_bundle
from gpushim.ground import fastjson
from gpushim.ground.errors import BUNDLE, REQUEST, ROOTFS, GpushimError
from gpushim.oci import bundle, edits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpushim.oci.edits import Edit


def inject(state: dict[str, Any]) -> None:
    """Give a created container what it asks for.

    Raises:
        GpushimError: the request is malformed or cannot be met, or config.json cannot be read.
    """
    decision = Decision({"container": state.get("id"), "by": edits.HOOK_NAME})
    try:
        _give(decision, state)
    except GpushimError as error:  # crun hands on the exit code of a hook, and nothing of what it says
        decision.record(str(error))
        raise
    decision.record()


def _give(decision: Decision, state: dict[str, Any]) -> None:
    directory, spec = read(state)
    request = None if edits.edited(spec) else decision.ask(spec)
    if request is None:
        return
    if request.foreign:  # their edits reach far beyond what a created container can still be given
        sentence = "devices of CDI specs need gpushim-runtime, or an engine that does CDI itself"
        raise GpushimError(f"{request.source} asks for {request.foreign[0]}, but {sentence}", REQUEST)
    if roots.is_restored(state):
        raise GpushimError(
            "the container cannot be restored: the hook alone has given it GPUs, whose device rules no checkpoint "
            "has; give it GPUs by gpushim-runtime or as CDI devices",
            REQUEST,
        )
    # Nodes come from the device root by themselves here, in a user namespace too.
    decision.plan({**of_bundle(spec, directory), "userns": False})
    planned, host = decision.edits, decision.inventory
    if not host["policy"]["hook"]["device-rules"]:
        planned = [edit for edit in planned if edit.kind != "rule"]
        decision.ignored.append("no device rules are written while [hook] device-rules is false")
    if decision.limits:
        from gpuhook import cgroup_limits  # most containers have no limit

        cgroup_limits.limit_decided(decision, state, roots.process_of(state["pid"]))
    confine(host["policy"]["log"]["file"])  # not before: a refresh, and NVML's child, need more than a hook
    put(planned, spec, state["pid"], host["driver"]["dev-root"])


def read(state: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the directory of a container's bundle, and its config.json.

    Raises:
        GpushimError: it cannot be read.
    """
    directory = bundle_of(state)
    path = directory + "/config.json"
    spec = fastjson.loads(bundle.read(path)[0], path)
    if not isinstance(spec, dict):
        raise GpushimError(f"{path} is not a JSON object", BUNDLE)
    bundle.check_spelling(spec, path)
    return directory, spec


def put(planned: list[Edit], spec: dict[str, Any], pid: int, dev_root: str) -> None:
    """Apply a plan to a created container, and finish it.

    Args:
        spec: the container's config.json, changed on the way: an edit that it has already is left out.
        pid: of its process.
        dev_root: absolute path of the directory that the host's nodes lie below.

    Raises:
        GpushimError: the container would lack something of its GPU.
    """
    missing = [edit for edit in planned if edits.apply([edit], spec)]
    (hook,) = [edit.value for edit in planned if edit.kind == "hook"]
    land(missing, Options(hook["args"][2:]), pid, dev_root)


def land(planned: list[Edit], options: Options, pid: int, dev_root: str) -> None:
    """Apply edits to a created container, and finish it.

    Args:
        pid: of its process; 0 if this process is in its mount namespace.
        dev_root: absolute path of the directory that the host's nodes lie below.

    Raises:
        GpushimError: the container would lack something of its GPU.
    """
    root = roots.open_root(roots.process_of(pid) if pid else "", options.rootfs)
    if roots.is_host_root(root):
        raise GpushimError("the container's rootfs is the host's own root directory", ROOTFS)
    work = Work(root, options.log)
    apply.apply_edits(planned, work.root, dev_root, work.warn)
    finish(work, options)
