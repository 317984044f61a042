"""Why a container gets each thing of its plan: looked up in the request, the inventory and the CDI specs.

Decides nothing: `plan.plan` did. Every edit of a plan has a reason here; a test holds the two together.
Out of scope: where the request came from (explain.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushim import hookargs, plan, selection
from gpushim.cdi import resolve
from gpushim.request import DEVICES, MPS_PIPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.request import Request

    Edit = tuple[str, Any]

UNKNOWN = "reason not found; please report this"


class Reasons:
    """The reasons of one plan.

    Args:
        wanted: the request.
        inventory: the snapshot that it was planned with.
        bundle: as `plan.plan` takes it.
        edits: what it returned.
    """

    def __init__(self, wanted: Request, inventory: dict[str, Any], bundle: dict[str, Any], edits: list[Edit]) -> None:
        self._wanted, self._inventory = wanted, inventory
        own, foreign = plan.parts(wanted)
        self.devices: list[tuple[str, str, list[Any]]] = []  # item, what it means, entries of the snapshot
        self._paths: dict[str, list[str]] = {}  # device node: reasons
        if own is not None:
            self._find_devices(own)
            granted = {value["path"] for kind, value in edits if kind == "node"}
            granted |= {value["destination"] for kind, value in edits if kind == "mount"}  # in a user namespace
            for path, why in self._nodes():
                if path in granted:
                    self._paths.setdefault(path, []).append(why)
        specs = inventory.get("policy", {}).get("cdi", {}).get("spec-dirs", [])
        self._cdi = {name: resolve.edits([name], specs, bundle) for name in foreign}

    def of(self, kind: str, value: Any) -> str:
        """Say why a plan has an edit.

        Args:
            kind: of the edit, and
            value: of it, as the docstring of gpushim.edits describes them.
        """
        found = [f"CDI device {name}" for name, edits in self._cdi.items() if (kind, value) in edits]
        own = getattr(self, "_" + kind, None)
        if own and not (found and kind == "env"):  # a later variable is the one that counts
            found = [*own(value), *found]
        return "; ".join(dict.fromkeys(found)) or UNKNOWN

    def _find_devices(self, own: list[Any]) -> None:
        for item in own:
            gpus, migs = selection.select([item], self._inventory, self._wanted.source)
            texts = [f"GPU {gpu['index']}" for gpu in gpus]
            texts += [f"MIG instance {mig['gpu']}:{mig['index']}" for mig in migs]
            self.devices.append((item[2], ", ".join(texts), [*gpus, *migs]))
        self._gpus, self._migs = selection.select(own, self._inventory, self._wanted.source)

    def _asked(self, device: dict[str, Any]) -> str:
        """Name the item by which a device was asked for."""
        items = [item for item, _, found in self.devices if device in found]
        return f', asked for as "{items[0]}"' if items else ""

    def _nodes(self) -> Iterator[tuple[str, str]]:
        """List paths of device nodes with a reason each; a container gets those of its plan."""
        wanted, inventory = self._wanted, self._inventory
        if inventory["platform"] != "native":
            yield from ((path, f"with any GPU on {inventory['platform']}") for path in inventory["nodes"])
            return
        yield "/dev/nvidiactl", "every GPU container needs it"
        cuda = [name for name in ("compute", "video") if name in wanted.capabilities]
        yield from ((path, f"CUDA needs it: {_capabilities(cuda)}") for path in plan.UVM_NODES if cuda)
        for gpu in self._gpus:
            yield gpu["node"], f"GPU {gpu['index']}{self._asked(gpu)}"
        parents = {gpu["index"]: gpu for gpu in inventory["gpus"]}
        for mig in self._migs:
            name = f"MIG instance {mig['gpu']}:{mig['index']}{self._asked(mig)}"
            yield from ((path, name) for path in [parents[mig["gpu"]]["node"], *mig["nodes"]])
        yield plan.MIG_CONFIG_NODE, "NVIDIA_MIG_CONFIG_DEVICES=all"
        yield plan.MIG_MONITOR_NODE, "NVIDIA_MIG_MONITOR_DEVICES=all"
        drawing = [name for name in wanted.capabilities if name in plan.DISPLAYING]
        yield plan.MODESET_NODE, f"graphics need it: {_capabilities(drawing)}"
        for gpu in inventory["gpus"]:
            drm = f"DRM node of GPU {gpu['index']}: {_capabilities(drawing)}"
            yield from ((path, drm) for path in gpu["drm"])
        for channel in wanted.imex:
            yield f"/dev/nvidia-caps-imex-channels/channel{channel}", f"IMEX channel {channel}"
        for feature in wanted.features:
            yield from ((path, _feature(feature)) for path in inventory["features"].get(feature, ()))

    def _node(self, node: dict[str, Any]) -> list[str]:
        return self._paths.get(node["path"], [])

    def _rule(self, rule: tuple[str, int, int, str]) -> list[str]:
        nodes = self._inventory.get("nodes", {})
        return [f"lets it open {path}" for path in self._paths if nodes.get(path, [])[:2] == list(rule[1:3])]

    def _gid(self, gid: int) -> list[str]:
        nodes = self._inventory.get("nodes", {})
        groups = {path: nodes[path] for path in self._paths if path in nodes}
        return [f"group of {path}" for path, node in groups.items() if node[4] == gid and node[2] & 0o006 != 0o006]

    def _env(self, pair: tuple[str, str]) -> list[str]:
        if pair[0] == MPS_PIPES:
            return ["[mps] enabled is true"]
        if pair[0] != DEVICES:
            return []
        if plan.parts(self._wanted)[0] is None:
            return ["tells whoever comes later to inject nothing"]
        if self._wanted.source == "env " + DEVICES:
            return ["as asked for, and only once"]
        return [f"UUIDs of what was asked for by {self._wanted.source}"]

    def _mount(self, mount: dict[str, Any]) -> list[str]:
        path = mount["destination"]
        found = list(self._paths.get(path, []))  # a node, in a user namespace
        for name, why in self._names():
            files = self._inventory["files"].get(name, ())
            if any(path in (file["path"], f"{plan.HARDLINKS}/{file.get('in')}") for file in files):
                found.append(why)
        return found

    def _names(self) -> Iterator[tuple[str, str]]:
        """List the snapshot's names of files that may be the reason for a mount."""
        wanted = self._wanted
        names = {"any": "every GPU container gets it"}
        names.update((name, _capabilities([name])) for name in wanted.capabilities)
        if "display" in names:
            names.setdefault("graphics", "capability display brings graphics")
        if "video" in names:
            names.setdefault("compute", "capability video loads it")
        names.update((name, _feature(name)) for name in wanted.features)
        names["mps"] = "MPS: [mps] enabled is true"
        yield from names.items()
        if "compat32" in names:
            yield from ((name + "32", f"{why}, with compat32") for name, why in names.items())

    def _hook(self, hook: dict[str, Any]) -> list[str]:
        args = hook["args"]
        work = [f"{args.count(word)} {what}" for word, (_, what) in hookargs.OPTIONS.items() if what and word in args]
        return [f"finishes the container: {', '.join(work) or 'nothing to link or cover'}"]


def _capabilities(names: list[str]) -> str:
    return f"{'capability' if len(names) == 1 else 'capabilities'} {' and '.join(names)}"


def _feature(name: str) -> str:
    return f"feature {name}: NVIDIA_{name.upper()}=enabled"
