"""From the launcher to runc: the whole story of a create, top to bottom.

The launcher (a POSIX sh script) found the verb, the bundle and the host's runc, and saw a word in config.json
that may concern a GPU. `main` reads the bundle, has `decide` say what the container gets, replaces config.json, and
becomes runc. A container that asks for no GPU reaches runc with its config.json untouched.

Budget: half a Python start beyond Python's own. So this path imports a short list of modules, which a test
pins, and nothing that imports `re`, `os` or `json`. NVML is never called here: refresh does that, in a child.
Other verbs come here where the launcher cannot go by the last refresh, to find the low-level runtime, and an `update`
over crun (update.py). Out of scope: what the launcher hands to runc at once.
"""

from __future__ import annotations

import _signal
import posix
import time

from gpushim.create import ahead
from gpushim.decision.decide import Decision, gone, of_bundle
from gpushim.ground import fastjson, system
from gpushim.ground.errors import BUNDLE, FAILED, NOT_EXECUTABLE, NOT_FOUND, GpushimError, for_engines
from gpushim.oci import bundle
from gpushim.oci.edits import apply
from gpushim.paths.logfile import append, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from gpushim.oci.edits import Edit

# Verbs that make a container of a bundle; an engine writes config.json for a restore, too.
MAKING = ("create", "run", "restore")


def main(argv: list[str]) -> NoReturn:
    """Edit the bundle where it asks for GPUs, and become the low-level runtime.

    Args:
        argv: what the launcher found: the low-level runtime, "yes" if no refresh has read the configuration since it
            changed, verb, bundle, container id, runc's --log and --log-format, the mask of ignored signals
            (decimal, as in /proc/self/stat), where standard streams are that are directories (pairs of digits: "09"
            means that 0 is at 9), "=" and LC_CTYPE if that was set, the launcher's own path; then runc's arguments.
    """
    started = time.monotonic()
    low, config_changed, verb, bundle_path, container, log, log_format, ignored, moved, lc_ctype, launcher, *args = (
        argv
    )
    for number, stream_fd in zip(moved[::2], moved[1::2]):
        posix.dup2(int(stream_fd), int(number))
        posix.close(int(stream_fd))
    if callable(_signal.getsignal(_signal.SIGINT)):  # CPython's, which would end in a traceback
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    posix.environ.pop(b"LC_CTYPE", None)  # CPython may have set or changed it (PEP 538)
    if lc_ctype:
        posix.environ[b"LC_CTYPE"] = lc_ctype[1:].encode("utf-8", "surrogateescape")
    try:
        if config_changed:
            low = configured_runtime(low, launcher)
        if verb in MAKING:
            low = edit(low, bundle_path, container, started, verb == "create")
        elif verb == "update" and bundle_path:
            from gpushim.create import update  # of a container over crun that may have a GPU

            args = update.keep_devices(args, bundle_path)
        become(low, args, int(ignored))
    except GpushimError as error:
        refuse(str(error), verb, container, log, log_format)
        posix._exit(error.exit_code)
    except ImportError as error:
        refuse(str(damaged(error)), verb, container, log, log_format)
        posix._exit(NOT_FOUND)
    except Exception as error:  # noqa: BLE001 - a bug of ours; an engine's user gets a sentence, not a traceback
        refuse(f"internal error, please report it: {error!r}", verb, container, log, log_format)
        posix._exit(FAILED)


def damaged(error: ImportError) -> GpushimError:
    """Return the refusal where a module cannot be imported."""
    return GpushimError(
        f"/usr/bin/python3 or gpushim is damaged: {error}; install gpushim and Python's standard library again "
        "(Debian: libpython3.N-stdlib; Red Hat: python3-libs)",
        NOT_FOUND,
    )


def edit(low: str, bundle_path: str, container: str, started: float, may_fork: bool = False) -> str:
    """Give the container of a bundle what it asks for.

    Args:
        low: path of the low-level runtime.
        bundle_path: the bundle's directory, absolute or relative to the working directory; "" is that directory.
        started: time.monotonic() at the start of this process.
        may_fork: whether a child may do the hook's work; it stays as long as the runtime, which `run` keeps.

    Returns:
        path of the low-level runtime, which a refresh on the way may have changed. It gets a bundle without
        config.json too, and says so itself.

    Raises:
        GpushimError: the request is malformed or cannot be met, or config.json cannot be read or replaced.
    """
    path = (bundle_path or ".") + "/config.json"
    try:
        folder = bundle.directory(path)
        on_disk, status = bundle.read(path, folder)
    except GpushimError:
        if bundle.is_absent(path):
            return low
        raise
    original = find_original(path, on_disk, folder)
    spec = fastjson.loads(original, path)
    if not isinstance(spec, dict):
        raise GpushimError(f"{path} is not a JSON object", BUNDLE)
    bundle.check_spelling(spec, path)
    decision = Decision({"container": container}, started)
    text, is_edited = original, False
    hook_edits: list[Edit] = []
    if decision.ask(spec) is not None:
        low = decision.low_level()
        about = of_bundle(spec, bundle_path)
        decision.plan(about)
        if may_fork and len(on_disk) < ahead.MOST:
            hook_edits = [change for change in decision.edits if change.kind == "hook"]
        for hook_edit in hook_edits:
            hook_edit.value = ahead.through_shell(hook_edit.value)
        is_edited = put(decision.edits, spec, about["rootfs"])
        text = fastjson.dumps(spec).encode("ascii") if is_edited else original
    if text != on_disk:
        # The engine's text first: a create that is killed between the next two renames would leave an earlier one's
        # edits that nobody can tell from the engine's.
        if is_edited and original != on_disk:
            bundle.replace(path, original, status, folder)
        bundle.replace(path, text, status, folder, original if is_edited else b"")
    decision.record()
    for hook_edit in hook_edits:
        ahead.start(hook_edit.value)
    return low


def put(edits: list[Edit], spec: dict[str, Any], rootfs: str) -> bool:
    """Put edits into a parsed config.json, the mounts where none can reach the host; returns whether it is another.

    Raises:
        GpushimError: there is no such place, or the spec has something of a wrong type.
    """
    changed = apply(edits, spec)
    linux = spec.get("linux")
    if isinstance(linux, dict) and linux.get("rootfsPropagation"):
        from gpushim.oci import propagation  # where it says nothing, nothing reaches the host

        propagation.arrange(edits, spec, rootfs)
    return changed


def find_original(path: str, data: bytes, folder: int) -> bytes:
    """Return config.json as the engine wrote it: as kept, if the file is what an earlier create has written."""
    edited, before = bundle.saved(path, folder)
    return before if data == edited else data


def configured_runtime(last: str, launcher: str) -> str:
    """Find the low-level runtime when the launcher could not: a configuration is there that no refresh has read.

    Args:
        last: the runtime that the last refresh found, or "".
        launcher: path of gpushim-runtime, which must not be its own low-level runtime.

    Raises:
        GpushimError: there is none, or it is gpushim-runtime itself.
    """
    from gpushim.config import policy  # imports json and more; after the next refresh nobody comes here

    try:
        names = policy.load(system.config_path())["runtime"]["low-level"]
    except GpushimError:
        names = []
    # Where they are not to be had, a request will meet it again and say so; most calls need nothing of it.
    low = policy.stand_in(names, last)
    launcher_status, low_status = posix.stat(launcher), posix.stat(low)
    if (launcher_status.st_dev, launcher_status.st_ino) == (low_status.st_dev, low_status.st_ino):
        raise GpushimError(
            f'the low-level runtime {low} is gpushim-runtime itself; name runc: low-level = ["runc"] under [runtime]',
            NOT_EXECUTABLE,
        )
    return low


def become(low: str, args: list[str], ignored: int) -> NoReturn:
    """Execute the low-level runtime with everything as the engine gave it to us.

    Args:
        ignored: mask of the signals that were ignored when the engine called us (sigignore, proc(5)).

    Raises:
        GpushimError: it cannot be executed.
    """
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # CPython ignores both, and exec would pass that on
        if not ignored >> (number - 1) & 1:
            _signal.signal(number, _signal.SIG_DFL)
    try:
        posix.execve(low, [low, *args], posix.environ)
    except FileNotFoundError:
        raise gone(low) from None
    except OSError as error:
        raise GpushimError(
            f"the low-level runtime {low} cannot be executed: {error.strerror}", NOT_EXECUTABLE
        ) from None


def refuse(sentence: str, verb: str, container: str, log: str, log_format: str) -> None:
    """Write a refusal where people look, and of a container that is not made, into the GPU log too."""
    complain(sentence, log, log_format)
    if verb in MAKING:
        Decision({"container": container}).record(sentence)


def complain(sentence: str, log: str, log_format: str) -> None:
    """Write a refusal on stderr and into runc's --log file, whose last error Docker and containerd show."""
    sentence = "gpushim: " + for_engines(sentence)
    line = fastjson.dumps({"level": "error", "msg": sentence, "time": now()})
    if log_format != "json":
        line = f"time={fastjson.dumps(now())} level=error msg={fastjson.dumps(sentence)}"
    append(log, line)
    try:
        posix.write(2, (sentence + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # stderr is closed, and there is nowhere else to say so
