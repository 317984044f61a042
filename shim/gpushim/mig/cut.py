"""What a layout changes on this host, who has what must go, and the change itself, GPU by GPU.

A change needs no record: a GPU's state, as NVML tells it, and the layout say what is left to do, whenever a process
before was killed. What fails is put back at once, to what the GPU had when the change began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.containers import holders
from gpushim.ground.errors import GpushimError
from gpushim.mig import fit, gpu_instances, layout_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpushim.ground.model import Gpu, Snapshot
    from gpushim.mig.fit import Instance, State
    from gpushim.mig.layout_file import Entry

    Users = Mapping[str, list[str]]  # by GPU or MIG instance, as in gpushim list: names of containers


FREE = "end what has it open (fuser -v /dev/nvidia* shows it; gpushim device-plugin release lets it go)"


class PendingError(GpushimError):
    """A GPU's MIG mode changes with its next reset."""


class UsedError(GpushimError):
    """Somebody has what must go, and may end."""


class Change(NamedTuple):
    """What a GPU is, and is to be.

    Attributes:
        gpu: of the snapshot.
        before: what it is.
        entry: of the layout, what it is to be.
        after: the instances that it is to have; None if NVML tells only in MIG mode which fit.
        names: of its instances that containers may ask for, by GPU instance.
    """

    gpu: Gpu
    before: State
    entry: Entry
    after: list[Instance] | None
    names: dict[int, list[str]]

    @property
    def switches(self) -> bool:
        return self.entry.enabled != self.before.enabled

    @property
    def differs(self) -> bool:
        return self.switches or bool(self.removed or self.made)

    @property
    def removed(self) -> dict[int, Instance]:
        return {gi: instance for gi, instance in self.before.instances.items() if instance not in (self.after or ())}

    @property
    def made(self) -> list[Instance]:
        return [instance for instance in self.after or () if instance not in self.before.instances.values()]

    def blockers(self, users: Users) -> list[str]:
        """Return the containers that have what must go."""
        if self.switches:
            return containers(users, self.gpu)
        return containers(users, self.gpu, [name for gi in self.removed for name in self.names.get(gi, ())])


def list_users(inventory: Snapshot) -> tuple[dict[str, list[str]], list[str]]:
    """Return the names of the containers that have a GPU or MIG instance, and notes about what cannot be looked at.

    Who has a GPU in MIG mode, with or without an instance, has the GPU too: its mode cannot change.
    """
    whole = [{**gpu, "mig": False} for gpu in inventory["gpus"]]
    rows, notes = holders.holders({**inventory, "gpus": whole})  # type: ignore[typeddict-item]
    users: dict[str, list[str]] = {}
    for row in rows:
        for device in row["devices"]:
            users.setdefault(device, []).append(holders.called(row) or row["id"])
    return users, notes


def containers(users: Users, gpu: Gpu, names: Iterable[str] | None = None) -> list[str]:
    """Return the containers that have any of these instances; None: the GPU."""
    devices = [str(gpu["index"])] if names is None else names
    return list(dict.fromkeys(user for device in devices for user in users.get(device, ())))


def look(nvml: Any, gpu: Gpu) -> State:
    return gpu_instances.read(nvml, _handle(nvml, gpu))


def name_instances(inventory: Snapshot, gpu: Gpu) -> dict[int, list[str]]:
    """Return the names of a GPU's MIG instances, as 0:1, by GPU instance."""
    names: dict[int, list[str]] = {}
    for mig in inventory["mig"]:
        if mig["gpu"] == gpu["index"]:
            names.setdefault(mig["gi"], []).append(f"{mig['gpu']}:{mig['index']}")
    return names


def plan(nvml: Any, inventory: Snapshot, entries: list[Entry], users: Users) -> list[Change]:
    """Return what a layout means for each GPU that it is about.

    Raises:
        GpushimError: it is not for this host, or something of it does not fit.
    """
    usable = [gpu for gpu in inventory["gpus"] if not gpu["problem"]]
    ids = {gpu["index"]: _pci_id(nvml, gpu) for gpu in usable}
    by_index = {gpu["index"]: gpu for gpu in inventory["gpus"]}
    chosen = layout_file.choose(entries, inventory["gpus"], ids)
    return [_plan_gpu(nvml, inventory, by_index[index], chosen[index], users) for index in sorted(chosen)]


def _plan_gpu(nvml: Any, inventory: Snapshot, gpu: Gpu, entry: Entry, users: Users) -> Change:
    before, names = look(nvml, gpu), name_instances(inventory, gpu)
    change = Change(gpu, before, entry, [], names)
    if not entry.enabled:
        return change
    if not before.enabled and not any(profile.placements for profile in before.profiles.values()):
        return change._replace(after=None)
    used = [item for gi, item in before.instances.items() if containers(users, gpu, names.get(gi, ()))]
    return change._replace(after=fit.target(before, entry.counts, used, call(gpu)))


def call(gpu: Gpu) -> str:
    return f"GPU {gpu['index']} ({gpu['model']})"


def refuse_used(changes: list[Change], users: Users) -> None:
    """Raise the refusal of changes while containers have what must go."""
    rows = [(change.gpu["index"], change.blockers(users)) for change in changes]
    used = [f"of GPU {index} {', '.join(blockers)}" for index, blockers in rows if blockers]
    if used:
        raise UsedError(
            f"containers have what must go: {'; '.join(used)}; end them, or wait until they end, then do this again"
        )


def carry_out(nvml: Any, inventory: Snapshot, change: Change) -> None:
    """Change a GPU; if that fails, what it was before is put back, but for a mode that waits for a reset.

    Raises:
        UsedError: somebody has what must go.
        GpushimError: it failed.
    """
    refuse_used([change], list_users(inventory)[0])  # the GPUs before this one may have taken a while
    gpu, before = change.gpu, change.before

    def choose(state: State) -> list[Instance]:
        return fit.target(state, change.entry.counts, [], call(gpu)) if change.after is None else change.after

    try:
        _bring(nvml, gpu, change.entry.enabled, choose)
    except PendingError:
        raise
    except (nvml.NVMLError, GpushimError) as error:
        problem = str(error) if isinstance(error, GpushimError) else f"{call(gpu)} cannot be changed: {error}"
        is_used = getattr(error, "value", None) == nvml.NVML_ERROR_IN_USE
        if is_used:
            problem += " (a process that is in no container: nvidia-smi shows it)"
        try:
            _bring(nvml, gpu, before.enabled, lambda state: [*before.instances.values()])
        except (nvml.NVMLError, GpushimError) as second:
            problem += f"; nor can it be what it was before: {second}; see gpushim mig show, then do this again"
        raise (UsedError if is_used else GpushimError)(problem) from None


def _bring(nvml: Any, gpu: Gpu, enabled: bool, choose: Callable[[State], list[Instance]]) -> None:
    """Bring a GPU into a mode, and to the instances that are chosen by its state then."""
    state = look(nvml, gpu)
    if state.enabled != enabled:
        gpu_instances.change(nvml, _handle(nvml, gpu), [])
        _switch(nvml, gpu, enabled)
        state = look(nvml, gpu)
    if enabled:
        gpu_instances.change(nvml, _handle(nvml, gpu), choose(state))


def _switch(nvml: Any, gpu: Gpu, enabled: bool) -> None:
    status = nvml.nvmlDeviceSetMigMode(_handle(nvml, gpu), int(enabled))
    state = look(nvml, gpu)
    if state.enabled == enabled:
        return
    called, mode = call(gpu), "on" if enabled else "off"
    if status == nvml.NVML_ERROR_IN_USE and not state.pending:
        raise GpushimError(f"{called} is in use, so its MIG mode cannot be {mode}: {FREE}, then do this again")
    raise PendingError(
        f"MIG mode of {called} will be {mode} when the GPU is reset: {FREE}, then nvidia-smi --gpu-reset -i "
        f"{gpu['uuid']}, or reboot; then do this again"
    )


def _handle(nvml: Any, gpu: Gpu) -> Any:
    return nvml.nvmlDeviceGetHandleByPciBusId(gpu["pci"].encode())  # which touches no other GPU


def _pci_id(nvml: Any, gpu: Gpu) -> str:
    """Return a GPU's PCI id; "" if it has just been lost, which concerns only a layout that names it."""
    try:
        return f"0x{nvml.nvmlDeviceGetPciInfo(_handle(nvml, gpu)).pciDeviceId:08x}"
    except nvml.NVMLError:
        return ""
