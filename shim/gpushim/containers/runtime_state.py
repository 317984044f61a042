"""The state that runc and crun keep of containers: their process and their bundle.

Users keep such states too, and write into them what they like: of each user no more than ALLOWANCE is read, and any
member may have any type.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from gpushim.ground import bounds, seen
from gpushim.paths.mountinfo import held, read_proc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.containers.names import Names

FILES = ("state.json", "status")  # of runc, of crun
SIZE_LIMIT = 16 << 20  # bytes of a file of root's
USERS_LIMIT = 1 << 20  # bytes of a user's, of which JSON in memory may be the thirtyfold
ALLOWANCE = 16 << 20  # bytes that are read of one user's files; a container's are some 50 KiB
LOOK = 4096  # bytes of it that any look at a file costs
STAT_LIMIT = 4096  # bytes of a process's stat


class Reader:
    """Reads the JSON files of states and bundles, each user's within an allowance.

    Args:
        notes: gets sentences about unreadable files.
        unseen: gets paths that this user may not look at.
        remaining: bytes of each user's allowance.
        user: the owner of these states; "" for root, or for directories that were named on the command line.
    """

    def __init__(
        self, notes: list[str], unseen: list[str], remaining: dict[str, int], user: str, names: Names
    ) -> None:
        self.notes, self.unseen, self.remaining, self.user, self.names = notes, unseen, remaining, user, names

    @property
    def whose(self) -> str:
        """The words about a user other than root that follow the engine."""
        return f" of user {os.path.basename(self.user)}" if self.user else ""

    @property
    def spent(self) -> bool:
        return bool(self.user) and self.remaining[self.user] <= 0

    def read(self, path: str) -> dict[str, Any] | None:
        """Read a JSON object; None if there is none (any more)."""
        data = self.json(path)
        return data if isinstance(data, dict) else None

    def json(self, path: str) -> Any:
        """Read a JSON file; None if there is none (any more), or it is not JSON."""
        data = b""
        try:
            with open(path, "rb", opener=_open_regular) as file:
                data = file.read(USERS_LIMIT if self.user else SIZE_LIMIT)
            document = json.loads(data)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            self.unseen.append(seen.barrier(path))
            return None
        except OSError as error:
            self.notes.append(f"{path} cannot be read: {error.strerror}")
            return None
        except (ValueError, RecursionError):
            return None  # being written, or malicious
        finally:
            self._charge(len(data))
        return document

    def mounts(self, process: str) -> bytes:
        """Read a process's mounts, within the allowance: a user's states may all name one process with many.

        Raises:
            OSError: the process has ended, may not be looked at, or has more mounts than that (EFBIG).
        """
        limit = max(0, min(self.remaining[self.user], bounds.MOUNT_TABLE)) if self.user else bounds.MOUNT_TABLE
        try:
            data = read_proc(f"{process}/mountinfo", limit)
        except OSError as error:
            self._charge(limit if error.errno == errno.EFBIG else 0)
            raise
        self._charge(len(data))
        return data

    def _charge(self, read: int) -> None:
        if self.user:
            self.remaining[self.user] -= max(read, LOOK)


def listing(folder: str, notes: list[str], unseen: list[str]) -> list[str]:
    try:
        return seen.listed(folder)
    except FileNotFoundError:
        return []
    except PermissionError:
        unseen.append(seen.barrier(folder))
        return []
    except OSError as error:
        notes.append(f"{folder} cannot be read ({error.strerror}), so containers there are not listed")
        return []


def state(folder: str, reader: Reader) -> dict[str, Any] | None:
    """Read the state of one container: {"pid", "start" (clock ticks since boot), "bundle", "spec", "copy"}.

    The bundles of a rootless engine are in its own mount namespace: "spec" is as much of config.json as the state
    has, "copy" the path of a copy.
    """
    for name in FILES:
        state = reader.read(f"{folder}/{name}")
        if state is None:
            continue
        if name == "status":
            facts = {"pid": state.get("pid"), "start": state.get("process-start-time"), "bundle": state.get("bundle")}
            return {**facts, "spec": None, "copy": f"{folder}/config.json"}
        config = state.get("config")
        config = config if isinstance(config, dict) else {}
        labels = config.get("labels")
        listed = [str(label) for label in labels] if isinstance(labels, list) else []
        bundles = [label[len("bundle=") :] for label in listed if label.startswith("bundle=")]
        start = state.get("init_process_start")
        facts = {"pid": state.get("init_process_pid"), "start": start, "bundle": bundles[-1] if bundles else None}
        return {**facts, "spec": _spec(config, listed), "copy": ""}
    return None


def _spec(config: dict[str, Any], labels: list[str]) -> dict[str, Any] | None:
    if "devices" not in config:
        return None
    devices = [{**device, "type": "c"} for device in objects(config["devices"]) if device.get("type") == ord("c")]
    annotations = dict(label.partition("=")[::2] for label in labels)
    return {"annotations": annotations, "mounts": config.get("mounts"), "linux": {"devices": devices}}


@contextlib.contextmanager
def process(state: dict[str, Any] | None, proc: str) -> Iterator[str]:
    """Hold the directory in procfs of a container's first process; "" if that has ended, or its pid is another's."""
    pid = state["pid"] if state else None
    if not isinstance(pid, int) or pid <= 0:
        yield ""
        return
    try:
        process = held(pid, proc)
    except OSError:
        yield ""
        return
    try:
        yield process if state and _is_alive(state, process) else ""
    finally:
        os.close(int(os.path.basename(process)))


def _is_alive(state: dict[str, Any], process: str) -> bool:
    try:
        fields = read_proc(f"{process}/stat", STAT_LIMIT).rpartition(b")")[2].split()
    except OSError:
        return False
    # Fields 3 and 22 of proc_pid_stat(5).
    return len(fields) > 19 and fields[0] not in b"ZX" and (not state["start"] or int(fields[19]) == state["start"])


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file: a user's FIFO or device must not hang us."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


def objects(members: Any) -> list[dict[str, Any]]:
    return [member for member in members if isinstance(member, dict)] if isinstance(members, list) else []
