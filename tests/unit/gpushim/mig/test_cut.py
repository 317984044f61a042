"""`gpushim mig` with real nvidia-ml-py over the simulated driver: cut, killed, put back, waiting for a reset."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpushim.cli import main
from unit.gpuhook.sandbox import forked
from unit.gpushim.cli.commands import apart
from unit.gpushim.inventory.machine import Machine

INSUFFICIENT_RESOURCES = 23
FILE = """version: v1
mig-configs:
  day: [{devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 2, 2g.20gb: 1}}]
  night: [{devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 1, 3g.40gb: 1}}]
  none: [{devices: all, mig-enabled: false}]
  both: [{devices: all, mig-enabled: true, mig-devices: {}}]
  a100: [{devices: [0], device-filter: "0x20B010DE", mig-enabled: true, mig-devices: {3g.20gb: 2}}]
  too-many: [{devices: [0], mig-enabled: true, mig-devices: {3g.20gb: 3}}]
"""
DAY, NIGHT = ["1g.10gb", "1g.10gb", "2g.20gb"], ["1g.10gb", "3g.40gb"]
CHANGES = (
    *("nvmlDeviceSetMigMode", "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"),
    *("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"),
)


class Cutter:
    """A host with an A100 and an H100 in MIG mode, and the command on it.

    Containers are known by the numbers of their nodes: these GPUs have those of no other test.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.host = machine.build([{"minor": 40}, {**fakehost.H100, "mig": [], "minor": 41}], driver="570.10")
        self.file = machine.folder / "mig.yaml"
        self.file.write_text(FILE)

    def call(
        self, *words: str, steps: int | None = None, fails: bool = False, reserved: bool = False
    ) -> tuple[int, str]:
        """Run the command in a child; returns its code and output.

        It is killed, or fails, after so many steps. Where NVML is reserved, it tells placements in MIG mode alone.
        """

        def work() -> tuple[int, str]:
            os.environ.update(self.machine.environment())
            if steps is not None:
                interrupt(steps, fails)
            if reserved:
                reserve()
            result = apart().invoke(main, ["mig", *words], prog_name="gpushim")
            return result.exit_code, result.stderr.splitlines()[-1] if result.exit_code else result.stdout

        return forked(work)

    def apply(self, name: str, code: int = 0, **options: Any) -> str:
        status, output = self.call("apply", str(self.file), "--config", name, **options)
        assert status == code, output
        return output

    def killed(self, name: str, steps: int) -> None:
        with pytest.raises(EOFError):  # of the child's pipe
            self.apply(name, steps=steps)
        os.wait()

    def migs(self) -> list[dict[str, Any]]:
        """The MIG instances of the snapshot, which must be what the driver has."""
        saved = self.machine.saved()
        self.host.adopt()
        assert [mig["uuid"] for mig in saved["mig"]] == [mig.uuid for gpu in self.host.gpus for mig in gpu.mig]
        modes = [(gpu.mig_mode or (0,))[0] for gpu in self.host.gpus]
        assert [int(gpu["mig"]) for gpu in saved["gpus"]] == modes
        return saved["mig"]  # type: ignore[no-any-return]

    def layout(self) -> list[tuple[str, int, int]]:
        return sorted((mig["profile"], *mig["placement"]) for mig in self.migs())

    def profiles(self) -> list[str]:
        return sorted(mig["profile"] for mig in self.migs())


def interrupt(steps: int, fails: bool) -> None:
    """Have the step after so many be the process's end, or fail once."""
    import pynvml

    taken: list[str] = []

    def interrupted(name: str) -> Any:
        call = getattr(pynvml, name)

        def step(*words: Any) -> Any:
            taken.append(name)
            if len(taken) != steps + 1:
                return call(*words)
            if fails:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
            return os.kill(os.getpid(), signal.SIGKILL)

        return step

    for name in CHANGES:
        setattr(pynvml, name, interrupted(name))


def reserve() -> None:
    import pynvml

    call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements

    def placements(device: Any, *words: Any) -> Any:
        if not pynvml.nvmlDeviceGetMigMode(device)[0]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return call(device, *words)

    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements = placements


@contextlib.contextmanager
def used(host: fakehost.Host, uuid: str) -> Iterator[None]:
    """Have a process use a GPU or MIG instance during the block."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            host.use(uuid, process.pid)
            yield
        finally:
            process.kill()


@pytest.fixture
def cutter(machine: Machine) -> Cutter:
    return Cutter(machine)


def test_only_what_differs_is_changed_and_all_is_told(cutter: Cutter) -> None:
    assert cutter.apply("day") == "GPU 1 is now 1g.10gb: 2, 2g.20gb: 1\n"
    day = cutter.migs()
    assert sorted(mig["profile"] for mig in day) == DAY
    assert cutter.apply("day") == "GPU 1 is already 1g.10gb: 2, 2g.20gb: 1\n"
    assert cutter.migs() == day
    cutter.apply("night")
    assert cutter.profiles() == NIGHT
    assert len({mig["uuid"] for mig in cutter.migs()} & {mig["uuid"] for mig in day}) == 1
    spec = Path(cutter.machine.state, "cdi/nvidia.com-gpu.json").read_text()
    assert all(mig["uuid"] in spec for mig in cutter.migs())
    assert not any(mig["uuid"] in spec for mig in day if mig["profile"] == "2g.20gb")


def test_another_gpu_that_has_just_been_lost_changes_nothing(cutter: Cutter) -> None:
    """The snapshot has it still."""
    cutter.apply("day")
    cutter.host.lose(0)
    assert cutter.apply("night") == "GPU 1 is now 1g.10gb: 1, 3g.40gb: 1\n"


def test_mode_is_changed_where_the_gpu_needs_no_reset(cutter: Cutter) -> None:
    assert cutter.apply("a100") == "GPU 0 is now 3g.20gb: 2\n"
    assert cutter.profiles() == ["3g.20gb", "3g.20gb"]
    assert cutter.apply("none").splitlines() == ["GPU 0 is now without MIG mode", "GPU 1 is now without MIG mode"]
    assert cutter.profiles() == []
    assert cutter.apply("none").splitlines() == [f"GPU {index} is already without MIG mode" for index in (0, 1)]


def test_what_does_not_fit_changes_nothing(cutter: Cutter) -> None:
    before = cutter.machine.refreshed()["mig"]
    nearest = "GPU 0 (NVIDIA A100-SXM4-40GB) has no room for 3g.20gb: 3; the nearest that fits is 3g.20gb: 2"
    for words in ("plan", "apply"):
        assert cutter.call(words, str(cutter.file), "-c", "too-many") == (1, f"gpushim: {nearest}")
    assert cutter.migs() == before


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(6))
def test_killed_at_any_step_it_goes_on_from_there(cutter: Cutter, steps: int) -> None:
    """From night to day: 3g.40gb goes in two steps, 1g.10gb and 2g.20gb come in two each."""
    cutter.apply("night")
    (stays,) = [mig["uuid"] for mig in cutter.migs() if mig["profile"] == "1g.10gb"]
    cutter.killed("day", steps)
    cutter.apply("day", steps=6)  # no more are left
    assert cutter.profiles() == DAY
    assert stays in [mig["uuid"] for mig in cutter.migs()]


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(3))
def test_killed_while_the_mode_is_new_it_goes_on_from_there(cutter: Cutter, steps: int) -> None:
    cutter.killed("a100", steps)
    cutter.apply("a100", steps=5)
    assert cutter.profiles() == ["3g.20gb", "3g.20gb"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("day", (1, 3, 5)), ("a100", (1, 4)), ("none", (2, 4))])
def test_what_fails_is_put_back(cutter: Cutter, name: str, steps: tuple[int, ...]) -> None:
    cutter.apply("night")
    before = cutter.layout()
    for step in steps:
        output = cutter.apply(name, code=1, steps=step, fails=True)
        assert output.endswith("cannot be changed: Insufficient Resources")
        assert cutter.layout() == before
    cutter.apply(name)


def test_what_cannot_be_put_back_is_told_and_the_next_call_goes_on(cutter: Cutter) -> None:
    cutter.apply("night")
    cutter.host.lack("nvmlDeviceCreateGpuInstanceWithPlacement", code=INSUFFICIENT_RESOURCES)
    assert "; nor can it be what it was before: Insufficient Resources; see" in cutter.apply("day", code=1)
    assert cutter.profiles() == ["1g.10gb"]
    cutter.host.lack()
    cutter.apply("day")
    assert cutter.profiles() == DAY


def test_what_a_process_without_container_uses_stays(cutter: Cutter) -> None:
    cutter.apply("night")
    before = cutter.layout()
    (large,) = [mig["uuid"] for mig in cutter.migs() if mig["profile"] == "3g.40gb"]
    with used(cutter.host, large):
        assert "(a process that is in no container: nvidia-smi shows it)" in cutter.apply("day", code=1)
        assert cutter.layout() == before
    cutter.apply("day")


@pytest.mark.parametrize("name", ["a100", "both"])
def test_a_gpu_in_use_keeps_its_mode(cutter: Cutter, name: str) -> None:
    with used(cutter.host, cutter.host.gpus[0].uuid):
        output = cutter.apply(name, code=1)
    assert "MIG mode of GPU 0 (NVIDIA A100-SXM4-40GB) will be on when the GPU is reset: end what has it" in output
    cutter.apply(name)


def test_a_newer_gpu_in_use_keeps_its_mode(cutter: Cutter) -> None:
    with used(cutter.host, cutter.host.gpus[1].uuid):
        output = cutter.apply("none", code=1)
    assert "GPU 1 (NVIDIA H100 80GB HBM3) is in use, so its MIG mode cannot be off: end what has it open" in output
    assert cutter.migs() == []
    cutter.apply("none")


def test_where_nvml_tells_placements_in_mig_mode_alone(cutter: Cutter) -> None:
    for name in ("a100", "too-many"):
        assert cutter.call("plan", str(cutter.file), "-c", name, reserved=True)[0] == 0
    assert "no room for 3g.20gb: 3; the nearest" in cutter.apply("too-many", code=1, reserved=True)
    assert [gpu["mig"] for gpu in cutter.machine.saved()["gpus"]] == [False, True]
    assert cutter.migs() == []
    cutter.apply("a100", reserved=True)
    assert cutter.profiles() == ["3g.20gb", "3g.20gb"]


def test_what_is_about_nothing_or_makes_nothing(cutter: Cutter) -> None:
    cutter.file.write_text("version: v1\nmig-configs: {nobody: [{devices: [], mig-enabled: false}]}")
    assert cutter.apply("nobody") == "the layout is about no GPU of this host\n"
    cutter.file.write_text(FILE)
    assert "GPU 1 is already in MIG mode, without instances\n" in cutter.apply("both")


def test_root_alone_cuts(cutter: Cutter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cutter.apply("day", code=1) == "gpushim: root alone may cut GPUs; run this as root"


def test_gpus_after_one_that_waits_for_a_reset_are_changed_all_the_same(cutter: Cutter) -> None:
    cutter.apply("none")
    cutter.host.refuse_reset(0)
    cutter.apply("both", code=1)
    assert [gpu["mig"] for gpu in cutter.machine.saved()["gpus"]] == [False, True]


def test_a_gpu_that_waits_for_a_reset_gets_its_instances_afterwards(cutter: Cutter) -> None:
    cutter.host.refuse_reset(0)
    for _ in range(2):
        assert f"nvidia-smi --gpu-reset -i {cutter.host.gpus[0].uuid}, or reboot" in cutter.apply("a100", code=1)
        assert cutter.call("show")[1].splitlines()[1] == "0    off until a reset"
    cutter.host.reset(0)
    cutter.apply("a100")
    assert cutter.profiles() == ["3g.20gb", "3g.20gb"]


def test_plan_changes_nothing(cutter: Cutter) -> None:
    cutter.apply("night")
    code, output = cutter.call("plan", str(cutter.file), "-c", "day")
    assert (code, [line.split() for line in output.splitlines()[1:]]) == (
        0,
        [
            ["1", "keep", "1:1", "1g.10gb", "4:1"],
            ["1", "remove", "1:0", "3g.40gb", "0:4"],
            ["1", "make", "2g.20gb", "0:2"],
            ["1", "make", "1g.10gb", "2:1"],
        ],
    )
    assert cutter.profiles() == NIGHT
