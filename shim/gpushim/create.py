"""From the launcher to runc: the whole story of a create, top to bottom.

The launcher (a POSIX sh script) found the verb, the bundle and the host's runc, and saw a word in config.json
that may concern a GPU. `main` reads the bundle, works out the request, plans, replaces config.json, and becomes
runc. A container that asks for no GPU reaches runc with its config.json untouched.

Budget: half a Python start beyond Python's own. So this path imports a short list of modules, which a test
pins, and nothing that imports `re`, `os` or `json`. NVML is never called here: refresh does that, in a child.
Other verbs come here where the launcher cannot go by the last refresh, to find the low-level runtime, and an `update`
over crun (update.py). Out of scope: what the launcher hands to runc at once.
"""

from __future__ import annotations

import _signal
import posix
import time

from gpushim import bounds, bundle, fastjson, plan, request, stamp
from gpushim.edits import apply
from gpushim.errors import BUNDLE, FAILED, NOT_EXECUTABLE, NOT_FOUND, GpushimError, for_engines
from gpushim.inventory import ensure
from gpushim.logfile import append, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

    Renew = Callable[[str, str], dict[str, Any]]  # paths of config.toml and of the state directory


def main(argv: list[str]) -> NoReturn:
    """Edit the bundle where it asks for GPUs, and become the low-level runtime.

    Args:
        argv: what the launcher found: the low-level runtime, "yes" if the configuration is newer than that or there
            is none yet, verb, bundle, container id, runc's --log and --log-format, the mask of ignored signals
            (decimal, as in /proc/self/stat), where standard streams are that are directories (pairs of digits: "09"
            means that 0 is at 9), "=" and LC_CTYPE if that was set, the launcher's own path; then runc's
            arguments.
    """
    started = time.monotonic()
    low, unread, verb, bundle_path, container, log, log_format, ignored, moved, lc_ctype, launcher, *args = argv
    for number, place in zip(moved[::2], moved[1::2]):
        posix.dup2(int(place), int(number))
        posix.close(int(place))
    if callable(_signal.getsignal(_signal.SIGINT)):  # CPython's, which would end in a traceback
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    posix.environ.pop(b"LC_CTYPE", None)  # CPython may have set or changed it (PEP 538)
    if lc_ctype:
        posix.environ[b"LC_CTYPE"] = lc_ctype[1:].encode("utf-8", "surrogateescape")
    try:
        if unread:
            low = configured_runtime(low, launcher)
        if verb in ("create", "run"):
            low = edit(low, bundle_path, container, started)
        elif verb == "update" and bundle_path:
            from gpushim import update  # of a container over crun that may have a GPU

            args = update.keep_devices(args, bundle_path)
        become(low, args, int(ignored))
    except GpushimError as error:
        refuse(str(error), verb, container, log, log_format)
        posix._exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - a bug of ours; an engine's user gets a sentence, not a traceback
        refuse(f"internal error, please report it: {error!r}", verb, container, log, log_format)
        posix._exit(FAILED)


def edit(low: str, bundle_path: str, container: str, started: float) -> str:
    """Give the container of a bundle what it asks for.

    Args:
        low: path of the low-level runtime.
        bundle_path: the bundle's directory, absolute or relative to the working directory; "" is that directory.
        container: its id, for the log.
        started: time.monotonic() at the start of this process.

    Returns:
        path of the low-level runtime, which a refresh on the way may have changed. It gets a bundle without
        config.json too, and says so itself.

    Raises:
        GpushimError: the request is malformed or cannot be met, or config.json cannot be read or replaced.
    """
    path = (bundle_path or ".") + "/config.json"
    try:
        folder = bundle.directory(path)
        data, status = bundle.read(path, folder)
    except GpushimError:
        if missing(path):
            return low
        raise
    spec = fastjson.loads(data, path)
    if not isinstance(spec, dict):
        raise GpushimError(f"{path} is not a JSON object", BUNDLE)
    bundle.check_spelling(spec, path)
    ignored: list[str] = []
    wanted, inventory = find_request(spec, ignored)
    if wanted is None:
        if ignored:
            record(inventory, {"level": "warning", "msg": "no GPU", "container": container, "ignored": ignored})
        return low
    low = sought(inventory)
    edits, chosen = plan.plan(wanted, inventory, facts(spec, bundle_path))
    if apply(edits, spec):
        bundle.replace(path, fastjson.dumps(spec), status, folder)
    line: dict[str, Any] = {"level": "info", "msg": "GPU container", "container": container, "gpus": chosen}
    line["request"] = f"{wanted.source}={wanted.text}"[:1000]
    line["milliseconds"] = round((time.monotonic() - started) * 1000, 2)
    if ignored:
        line["ignored"] = ignored
    record(inventory, line)
    return low


def missing(path: str) -> bool:
    """Say whether there is no such file; one that cannot be looked at may be there."""
    try:
        posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def find_request(
    spec: dict[str, Any], ignored: list[str], renew: Renew | None = None
) -> tuple[request.Request | None, dict[str, Any]]:
    """Read the request under the policy in force, with an inventory that is true now.

    A container that asks for nothing is never harmed by trouble of ours: it does not wait for a refresh, unless
    the policy itself has changed, and not even then does a failing one stop it. Nor does one wait that asks for CDI
    devices of others alone: what the inventory has to say does not concern it.

    Args:
        spec: a parsed config.json.
        ignored: receives a sentence for each thing asked for that the policy forbids.
        renew: called instead of `ensure.snapshot` for an inventory that is true now.

    Returns:
        the request, or None; and the inventory snapshot.

    Raises:
        GpushimError: the request is malformed, or the host's inventory cannot be had for it.
    """
    config, state = stamp.config_path(), stamp.state_dir()
    inventory, stale = ensure.last(config, state)
    if stale != "policy":
        wanted = request.read(spec, inventory["policy"], ignored)
        if wanted is None or not stale or plan.parts(wanted)[0] is None:
            return _with_channels(wanted, inventory)
    try:
        inventory = (renew or ensure.snapshot)(config, state)
    except GpushimError:
        if stale == "policy":
            from gpushim import unread  # imports json and more, and is for trouble only

            if not unread.may_ask(spec, config, state):
                return None, {}
        raise
    ignored.clear()
    return _with_channels(request.read(spec, inventory["policy"], ignored), inventory)


def _with_channels(
    wanted: request.Request | None, inventory: dict[str, Any]
) -> tuple[request.Request | None, dict[str, Any]]:
    if wanted is not None and wanted.imex:
        ensure.look_at_channels(inventory, wanted.imex)
    return wanted, inventory


def facts(spec: dict[str, Any], bundle_path: str) -> dict[str, Any]:
    """Collect what a plan must know of the bundle: see `plan.plan`.

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
    return {"rootfs": absolute(rootfs, bundle_path), "userns": userns, "hook": hook_program()}


def hook_program() -> str:
    """Return the path of the gpushim-hook that belongs to this code: of a package, a checkout, pip or uv."""
    top, _, last = absolute(__file__).rpartition("/gpushim/")[0].rpartition("/")
    if last.endswith("-packages"):  # TOP/lib/python3.x/site-packages
        return top.rpartition("/lib")[0] + "/bin/gpushim-hook"
    return f"{top}/bin/gpushim-hook" if last == "shim" else "/usr/bin/gpushim-hook"


def absolute(path: str, base: str = "") -> str:
    """Make a path absolute, against a base, or else the working directory.

    Raises:
        GpushimError: that directory is gone.
    """
    if path.startswith("/"):
        return path
    return f"{absolute(base) if base else bundle.working_directory()}/{path}".rstrip("/")


def configured_runtime(last: str, launcher: str) -> str:
    """Find the low-level runtime when the launcher could not: a configuration is there that no refresh has read.

    Args:
        last: the runtime that the last refresh found, or "".
        launcher: path of gpushim-runtime, which must not be its own low-level runtime.

    Raises:
        GpushimError: there is none, or it is gpushim-runtime itself.
    """
    from gpushim import policy  # imports json and more; after the next refresh nobody comes here

    try:
        names = policy.load(stamp.config_path())["runtime"]["low-level"]
    except GpushimError:
        names = []
    # Where they are not to be had, a request will meet it again and say so; most calls need nothing of it.
    low = policy.stand_in(names, last)
    ours, theirs = posix.stat(launcher), posix.stat(low)
    if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
        raise GpushimError(
            f'the low-level runtime {low} is gpushim-runtime itself; name runc: low-level = ["runc"] under [runtime]',
            NOT_EXECUTABLE,
        )
    return low


def sought(inventory: dict[str, Any]) -> str:
    """Return the low-level runtime; looks for it if the last refresh has not found one.

    Args:
        inventory: the snapshot.

    Raises:
        GpushimError: there is none.
    """
    if inventory["runtime"]:
        return str(inventory["runtime"])
    from gpushim import policy

    return policy.low_level(inventory["policy"]["runtime"]["low-level"])


def become(low: str, args: list[str], ignored: int) -> NoReturn:
    """Execute the low-level runtime with everything as the engine gave it to us.

    Args:
        low: its path.
        args: its arguments.
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


def gone(low: str) -> GpushimError:
    """Say that the low-level runtime of this path is not there any more."""
    return GpushimError(f"the low-level runtime {low} is gone; install it, or run gpushim refresh", NOT_FOUND)


def refuse(sentence: str, verb: str, container: str, log: str, log_format: str) -> None:
    """Say why where people look, and of a container that is not made, in the GPU log too."""
    complain(sentence, log, log_format)
    if verb in ("create", "run"):
        from gpushim import refusal  # imports json and more

        refusal.record(sentence, {"container": container})


def complain(sentence: str, log: str, log_format: str) -> None:
    """Say why on stderr and as a line in runc's --log file: Docker and containerd show the last error line there."""
    sentence = "gpushim: " + for_engines(sentence)
    line = fastjson.dumps({"level": "error", "msg": sentence, "time": now()})
    if log_format != "json":
        line = f"time={fastjson.dumps(now())} level=error msg={fastjson.dumps(sentence)}"
    append(log, line)
    try:
        posix.write(2, (sentence + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # stderr is closed, and there is nowhere else to say so


def record(inventory: dict[str, Any], line: dict[str, Any]) -> None:
    """Write the line about a container that asked, into the log that [log] names."""
    ignored = line.get("ignored", ())
    if len(ignored) > bounds.LISTED:  # an image can name thousands of channels
        line = {**line, "ignored": [*ignored[: bounds.LISTED], f"and {len(ignored) - bounds.LISTED} more"]}
    append(inventory["policy"]["log"]["file"], fastjson.dumps({"time": now(), **line}))
