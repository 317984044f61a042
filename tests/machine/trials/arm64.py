"""What is tried on the arm64 machine: packages, nodes, the loader's cache, the device plugin, other hosts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from machine.trials import device_rules
from machine.trials.hosts import LOAD, hosts
from machine.trials.node_plugin import plugin
from machine.trials.rows import case, end, run

PACKAGES = ("gpushim", "gpushim-device-plugin", "gpushim-nvidia-compat")
LIBRARY = "/lib/aarch64-linux-gnu/libcuda.so.1"  # to the image's ldconfig; to the driver, below /usr
LISTED = re.compile(r"libcuda\.so\.1 \(libc6,AArch64\) => (\S+)")


def packages() -> None:
    """What dpkg says of our packages, and whether their programs start."""
    system = os.uname()
    case(f"machine: {system.machine}, Linux {system.release}", system.machine == "aarch64")
    said = run("dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status} ${Architecture}\n", *PACKAGES)
    listed = [f"{name} installed all" for name in PACKAGES]
    case("packages: installed by dpkg, of any architecture", said.splitlines() == listed, said)
    said = run("dpkg", "--verify", *PACKAGES)
    other = [line for line in said.splitlines() if not line.startswith("missing ") or "/usr/share/" not in line]
    changed = [line for line in other if not line.endswith(" c /etc/gpushim/config.toml")]
    # The machine's dpkg leaves out pages, and the settings are its own.
    case("packages: dpkg --verify", not changed, said)
    for name in ("gpushim", "gpushim-device-plugin", "gpushim-dra-driver"):
        said = run(name, "--version")
        case(f"packages: {name} --version", "[status" not in said and said.startswith(name), said)
    units = [f"/usr/lib/systemd/system/gpushim-{name}.service" for name in ("device-plugin", "dra-driver")]
    said = run("systemd-analyze", "verify", "--man=no", *units)
    case("packages: systemd-analyze verify", not said, said)


def cached(name: str, execute: Callable[..., str]) -> None:
    """Check that ldconfig lists the driver's library in a container's cache, and that the loader loads it."""
    said = execute("/sbin/ldconfig", "-p")
    found = LISTED.findall(said)[:1]
    case(f"{name}: ldconfig -p lists libcuda.so.1", found in ([LIBRARY], [f"/usr{LIBRARY}"]), said[:4000])
    said = execute("sh", "-c", LOAD)
    case(f"{name}: the loader loads it", said.splitlines()[-1:] == ["loaded"], said)


def engines() -> None:
    """The other machine's trial; in each container, what the loader finds before and after its own ldconfig."""
    trial = device_rules.started()
    for name, execute in trial.containers.items():
        cached(name, execute)
        said = execute("/sbin/ldconfig")
        cached(f"{name}, its own ldconfig{said}", execute)
    said = run("gpushim", "doctor", "--run")
    loaded = "does not load" not in said and "no test container" not in said
    case("doctor --run: a container of runc's loads the libraries", "run-runc" in said and loaded, said)
    device_rules.again(trial)


PARTS: dict[str, Callable[[], None]] = {"packages": packages, "engines": engines, "plugin": plugin, "hosts": hosts}


def main() -> None:
    """Try everything, or the parts that are named."""
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
    end()


if __name__ == "__main__":
    main()
