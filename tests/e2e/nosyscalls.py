"""Run a command that has neither openat2(2) nor the new mount calls: `nosyscalls.py ENOSYS|EPERM program [word...]`.

ENOSYS is an old kernel's answer, EPERM that of a strict sandbox.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from unit.gpuhook.seccomp import deny

# open_tree, move_mount, fsopen, fsmount, openat2, mount_setattr: <asm-generic/unistd.h>, the same on every machine.
CALLS = (428, 429, 430, 432, 437, 442)

if __name__ == "__main__":
    deny(CALLS, getattr(errno, sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
