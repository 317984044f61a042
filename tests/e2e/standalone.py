"""A container whose engine knows of no runtime but the hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.bundles import Bundle
from e2e.trees import TOP

NAMES = ("gpushim-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit")
# What a container sees, in the container's own words.
LOOK = """
import hashlib, json, os, sys
seen = {"nodes": {}, "links": {}, "mounts": {}, "files": {}}
for top in ("/dev", "/etc", "/usr", "/run", "/lib/firmware"):
    for folder, folders, names in os.walk(top):
        for path in [os.path.join(folder, name) for name in names + folders]:
            facts = os.lstat(path)
            if os.path.islink(path):
                seen["links"][path] = os.readlink(path)
            elif facts.st_rdev:
                seen["nodes"][path] = [facts.st_mode, facts.st_rdev, facts.st_uid, facts.st_gid]
            else:
                data = open(path, "rb").read() if os.path.isfile(path) else b""
                seen["files"][path] = [facts.st_mode, facts.st_uid, hashlib.sha256(data).hexdigest()]
for line in open("/proc/self/mountinfo"):
    words = line.split()
    seen["mounts"][words[4]] = [words[3], words[5], words[6]]
seen["rules"] = sorted(open("/sys/fs/cgroup/devices/devices.list"))
json.dump(seen, sys.stdout)
"""


def alone(bundle: Bundle, *env: str, args: list[str], name: str = NAMES[1], top: Path = TOP, **members: Any) -> None:
    """Write a config.json as an engine does that knows of no runtime but a hook."""
    variables = [f"{key}={value}" for key, value in bundle.env.items()]
    hook = {"path": str(top / "bin" / name), "args": [name, "prestart"], "env": ["PATH=/usr/bin", *variables]}
    bundle.ask(*env, args=args, **{"hooks": {"prestart": [hook]}, **members})


def volume(source: Path, destination: str) -> dict[str, Any]:
    return {"destination": destination, "source": str(source), "type": "bind", "options": ["rbind", "rw"]}
