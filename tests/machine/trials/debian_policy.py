"""What is tried under Debian's SELinux policy: it confines engines too, and lets them write nothing of gpushim's.

So a container with a request is refused in one sentence; permissive, it gets its GPU. Out of scope: Red Hat's policy
(confined.py).
"""

from __future__ import annotations

import os
import re

from machine.trials.confined import SPEC, settled
from machine.trials.looks import DOCKER, GIVEN, OTHER, SHIM, container
from machine.trials.rows import case, end, note, run, sh

CLOSED = "gpushim: the snapshot cannot be saved: /run/gpushim/lock: no permission"
KNOWS_NOTHING = "its policy has no container_use_devices, so it knows nothing of containers"
DENIED = re.compile(r"avc: +denied +(\{[^}]*\}).* scontext=\S+:(\w+):s0\S* tcontext=\S+:(\w+):s0\S* tclass=(\w+)")


def denied() -> list[str]:
    """Return what has been denied, each once, as domain, type, class and access."""
    found = (DENIED.search(line) for line in run("dmesg").splitlines())
    return sorted({f"{row[2]} {row[3]} {row[4]} {row[1]}" for row in found if row})


def main() -> None:
    """Try it, enforced and permissive."""
    said = sh("cat /sys/kernel/security/lsm /proc/1/attr/current; getenforce")
    case("boot: enforcing", "Enforcing" in said, said)
    said = settled()
    case("boot: the refresh ran", "Result=success" in said and os.path.exists(SPEC), said)
    said = run("insmod", f"/usr/lib/modules/{os.uname().release}/nvproc.ko", f"gpus={GIVEN[1]},{OTHER[1]}")
    said += run("gpushim", "refresh")
    case("a refresh with the driver's /proc", os.path.exists("/run/gpushim/params"), said)
    case("docker import", "[status" not in (said := run("docker", "import", "/srv/rootfs.tar", "box")), said)
    said = run(*DOCKER, "box", "sh", "-c", "cat /proc/self/attr/current")
    case("a container without a request: confined", ":container_t:" in said, said)
    case("a container with one is refused in one sentence", CLOSED in (said := run(*SHIM, "box", "true")), said)
    said = run("gpushim", "doctor", "--all")
    case("doctor: no rules for containers", KNOWS_NOTHING in said, said)
    note(
        "labels",
        run("ls", "-dZ", "/run/gpushim", "/run/gpushim/lock", "/usr/bin/dockerd", "/usr/bin/gpushim-runtime"),
    )
    note("denied", "\n".join(denied()))
    run("setenforce", "0")
    container("docker shim, permissive", *SHIM)
    end()


if __name__ == "__main__":
    main()
