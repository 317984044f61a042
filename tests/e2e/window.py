"""The hook with a window before each system call that takes a name, in which something else takes the place's name.

    window.py WHEN PLACE OTHER NAIVE COUNT prestart [option]...

Instead of sleeping until another process has exchanged PLACE and OTHER, it exchanges them itself: the race is won
with certainty. WHEN says which calls see the other thing there: those that `use` what was found, those that `look`
for it, or `each` call another than the one before. NAIVE, if not empty, puts a resolver in the place of ours that
trusts the kernel with links, as a proof that the windows are real. The number of exchanges goes to the file COUNT.
"""

from __future__ import annotations

import ctypes
import posix
import sys
from typing import Any, Callable

TOP = __file__.rpartition("/tests/")[0]
sys.path[:0] = [TOP + "/hook", TOP + "/shim"]

from gpuhook import prestart  # noqa: E402 - found only now
from gpuhook.inject import mounts, roots  # noqa: E402
from gpushim.paths import directory, rootfs, walk  # noqa: E402

RENAME_EXCHANGE, AT_FDCWD = 2, -100
LOOKS, USES = ("open", "readlink", "scandir"), ("mkdir", "symlink", "rename", "unlink")
NEW_FILE = posix.O_CREAT

_libc = ctypes.CDLL(None)


class Window:
    """The place whose name is exchanged."""

    def __init__(self, when: str, place: str, other: str) -> None:
        self.when, self.names = when, (place.encode(), other.encode())
        self.swapped, self.count = False, 0

    def swap(self, swapped: bool) -> None:
        """Make PLACE the other thing, or itself again."""
        if swapped != self.swapped:
            one, two = self.names
            if _libc.renameat2(AT_FDCWD, one, AT_FDCWD, two, RENAME_EXCHANGE) == 0:
                self.swapped = swapped
                self.count += 1

    def around(self, call: Callable[..., Any], use: bool | None) -> Callable[..., Any]:
        """Wrap a call that looks or uses; None if its flags say which (openat(2))."""

        def wrapped(*words: Any, **options: Any) -> Any:
            uses = bool(words[1] & NEW_FILE) if use is None else use
            self.swap(not self.swapped if self.when == "each" else uses == (self.when == "use"))
            return call(*words, **options)

        return wrapped


def naive(root: int, path: str, follow: bool = True, missing: object = None, allow: object = None) -> int:
    """Open what the kernel finds: absolute links and `..` lead out of the root."""
    del follow, missing, allow
    return posix.open(path.strip("/") or ".", posix.O_PATH, dir_fd=root)


def main(when: str, place: str, other: str, trusting: str, count: str, *argv: str) -> None:
    """Run the hook with windows."""
    window = Window(when, place, other)
    for name in LOOKS + USES:
        use = None if name == "open" else name in USES
        setattr(posix, name, window.around(getattr(posix, name), use))
    mounts._call = window.around(mounts._call, True)
    mounts._mount = window.around(mounts._mount, True)
    if trusting:
        for module in (walk, rootfs):
            module.walk = naive  # type: ignore[attr-defined]
        for module in (directory, rootfs):
            setattr(module, "mount_id", lambda _fd: b"")  # noqa: B010 - not a name that they export
        setattr(roots, "check", lambda _root: None)  # noqa: B010 - which would refuse a root whose mount has no id
    leave = posix._exit

    def restore(code: int) -> None:
        window.swap(False)
        with open(count, "w") as file:
            file.write(str(window.count))
        leave(code)

    posix._exit = restore  # type: ignore[assignment]
    prestart.main(list(argv))


if __name__ == "__main__":
    main(*sys.argv[1:])
