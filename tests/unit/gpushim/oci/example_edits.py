"""Edits of every kind: gpushim's own, and those of foreign CDI specs."""

from __future__ import annotations

from gpushim.oci.edits import Edit

NODE = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "uid": 0, "gid": 0}
MOUNT = {"destination": "/usr/bin/nvidia-smi", "source": "/d/usr/bin/nvidia-smi", "type": "bind", "options": ["ro"]}
HOOK = {"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart"], "env": ["PATH=/bin"]}
ALL: list[Edit] = [
    Edit("node", NODE),
    Edit("rule", ("c", 195, 0, "rw")),
    Edit("mount", MOUNT),
    Edit("env", ("NVIDIA_VISIBLE_DEVICES", "0")),
    Edit("gid", 44),
    Edit("hook", HOOK),
]
OWNED = {"uid": 5, "gid": 6}
SET_NODE = {"path": "/dev/x", "type": "b", "major": 7, "minor": 1}
FOREIGN: list[Edit] = [
    Edit("set-node", SET_NODE),
    Edit("rule", ("b", 7, 1, "rwm")),
    Edit("set-mount", {"destination": "/opt", "source": "/o", "options": ["rbind"]}),
    Edit("env", ("A", "")),
    Edit("stage-hook", ("createContainer", {"path": "/bin/x", "env": ["A=1"]})),
    Edit(
        "stage-hook",
        ("prestart", {"path": "/bin/gpushim-hook", "args": ["gpushim-hook", "prestart", "--lib", "x=y"]}),
    ),
    Edit("rdt", {"closID": "c"}),
    Edit("gid", 7),
]
