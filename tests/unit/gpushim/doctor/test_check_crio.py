"""Checks of CRI-O: each fault is planted, its fix is done as it says, and then the doctor says ok."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
import tomlkit

from gpushim.doctor import Finding, checks
from gpushim.engines import crio
from gpushim.engines.processes import programs
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings import toml
from unit.gpushim.doctor.administrator import Administrator
from unit.gpushim.doctor.engine_states import of_a_user
from unit.gpushim.doctor.fault import State, into
from unit.gpushim.doctor.patient import HOOK, RUNTIME, Patient

MAIN, DROP_IN = "etc/crio/crio.conf", "etc/crio/crio.conf.d/99-gpushim.toml"
SETTINGS = """[crio.runtime]
default_runtime = "runc"
hooks_dir = ["{top}/hooks.d"]
cdi_spec_dirs = ["{cdi}"]
[crio.runtime.runtimes.runc]
runtime_path = "{top}/usr/sbin/runc"
"""
Node = Patient
STATES: list[State] = []
fault = into(STATES)


@pytest.fixture
def administrator(unlisted: Patient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Administrator]:
    """One who has a host with a CRI-O that has read our handler, and which systemd did not start."""
    top = unlisted.root
    (unlisted.top / "run/systemd/system").rmdir()
    unlisted.write(MAIN, SETTINGS.format(top=top, cdi=f"{unlisted.state}/cdi"))
    (unlisted.top / "etc/crio/crio.conf.d").mkdir()
    (unlisted.top / "hooks.d").mkdir()
    unlisted.script("usr/bin/crio", f"exec cat {top}/loaded.toml")
    argv = ("crio", f"--config-dir={top}/{os.path.dirname(DROP_IN)}")
    engine = Engine("crio", 43, exe=f"{top}/usr/bin/crio", argv=argv, config=f"{top}/{MAIN}", uid=os.geteuid())
    unlisted.host.engines[:] = [engine]
    monkeypatch.setattr(crio, "HOOKS", f"{top}/hooks.d")
    monkeypatch.setenv("GPUSHIM_CONFIG", unlisted.config)
    with contextlib.ExitStack() as held:
        found = Administrator(unlisted, held)
        monkeypatch.setattr(programs, "DIRECTORIES", (f"{top}/usr/bin",))
        found.does("gpushim configure crio --hooks; then restart crio (process 43) the way it was started")
        yield found


@pytest.fixture
def node(administrator: Administrator) -> Patient:
    return administrator.patient


def restarted(node: Node) -> None:
    merged = toml.merged([f"{node.root}/{MAIN}", f"{node.root}/{os.path.dirname(DROP_IN)}"])
    node.write("loaded.toml", tomlkit.dumps(merged))


def edit(node: Node, name: str, old: str, new: str) -> None:
    path = node.top / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@fault("crio-daemon", "broken", "no such socket")
def it_does_not_answer(node: Node) -> None:
    (node.top / "loaded.toml").unlink()
    node.script("usr/bin/crio", f"cat {node.root}/loaded.toml 2>/dev/null || {{ echo no such socket >&2; exit 1; }}")


@fault("crio-runtime", "broken", "do not name gpushim-runtime")
def handler_is_missing(node: Node) -> None:
    (node.top / DROP_IN).unlink()
    restarted(node)


@fault("crio-runtime", "broken", "has nothing for the handler nvidia")
def it_has_not_read_its_files(node: Node) -> None:
    drop_in = (node.top / DROP_IN).read_bytes()
    (node.top / DROP_IN).unlink()
    restarted(node)
    (node.top / DROP_IN).write_bytes(drop_in)


@fault("crio-runtime", "broken", "its files say nothing")
def it_has_what_its_files_no_longer_have(node: Node) -> None:
    (node.top / DROP_IN).unlink()


@fault("crio-runtime", "broken", "which is not an executable file")
def program_is_gone(node: Node) -> None:
    edit(node, DROP_IN, str(RUNTIME), "/gone/gpushim-runtime")
    restarted(node)


@fault("crio-runtime", "broken", "handler gpu is /gone/gpushim-runtime")
def program_of_another_name_is_gone(node: Node) -> None:
    node.write(
        "etc/crio/crio.conf.d/50.conf", '[crio.runtime.runtimes.gpu]\nruntime_path = "/gone/gpushim-runtime"\n'
    )
    restarted(node)


@fault("crio-runtime", "warning", "hands containers to")
def default_runtime_is_another(node: Node) -> None:
    node.script("usr/libexec/crio/crun", "echo crun version 1.20")
    edit(node, MAIN, "usr/sbin/runc", "usr/libexec/crio/crun")
    restarted(node)


@fault("crio-hooks", "broken", "without their GPUs")
def hook_is_gone(node: Node) -> None:
    edit(node, "hooks.d/99-gpushim.json", str(HOOK), "/gone/gpushim-hook")


@fault("crio-hooks", "warning", "not gpushim's")
def hook_is_nvidias(node: Node) -> None:
    node.script("usr/bin/nvidia-container-toolkit", "true")
    program = node.top / "usr/bin/nvidia-container-toolkit"
    node.write("hooks.d/oci-nvidia-hook.json", f'{{"hook": {{"path": "{program}"}}}}')


@fault("crio-runtime", "broken", "which runs with every container, and others could change it: ")
def program_of_a_users(node: Node) -> None:
    edit(node, DROP_IN, str(RUNTIME), of_a_user(node, RUNTIME))
    restarted(node)


@fault("crio-hooks", "broken", "which runs with every container, and others could change it: ")
def hook_of_a_users(node: Node) -> None:
    edit(node, "hooks.d/99-gpushim.json", str(HOOK), of_a_user(node, HOOK))


@fault("crio-cdi", "warning", "gpushim's spec is in")
def cdi_is_elsewhere(node: Node) -> None:
    edit(node, MAIN, f"{node.state}/cdi", "/etc/cdi")
    restarted(node)


def handler(node: Node, name: str, program: object) -> None:
    """Let somebody else's settings, and the CRI-O that runs, have a handler."""
    (node.top / DROP_IN).unlink()
    node.write("etc/crio/crio.conf.d/50.conf", f'[crio.runtime.runtimes.{name}]\nruntime_path = "{program}"\n')
    restarted(node)


@fault("crio-runtime", "broken", "their nvidia is")
def handler_is_nvidias(node: Node) -> None:
    handler(node, "nvidia", node.script("usr/bin/nvidia-container-runtime", "exec true"))


@fault("crio-runtime", "broken", "handler nvidia is /gone/nvidia-container-runtime, which is not")
def handler_is_nvidias_and_gone(node: Node) -> None:
    handler(node, "nvidia", "/gone/nvidia-container-runtime")


@fault("crio-runtime", "broken", "handler nvidia-legacy is /gone/nvidia-container-runtime, which is not")
def another_handler_is_nvidias_and_gone(node: Node) -> None:
    node.write(
        "etc/crio/crio.conf.d/50.conf",
        '[crio.runtime.runtimes.nvidia-legacy]\nruntime_path = "/gone/nvidia-container-runtime"\n',
    )
    restarted(node)


def bad(node: Node) -> list[Finding]:
    found = [each for name in checks.ENGINES["crio"] for each in node.said(name, "crio")]
    return [each for each in found if each.verdict in ("warning", "broken")]


def test_all_is_well(node: Node) -> None:
    assert bad(node) == []
    assert [each.verdict for name in checks.ENGINES["crio"] for each in node.said(name)] == ["ok"] * 4


@pytest.mark.parametrize("state", STATES, ids=str)
def test_fix(administrator: Administrator, state: State) -> None:
    node = administrator.patient
    administrator.does(state.found(node).fix)
    for _ in range(3):  # a fix may bring a restart to light
        for each in bad(node)[:1]:
            administrator.does(each.fix)
    assert bad(node) == []


def test_a_handler_that_is_the_compat_packages_link_is_ours(node: Node) -> None:
    link = node.top / "usr/bin/nvidia-container-runtime"
    link.symlink_to(RUNTIME)
    handler(node, "nvidia", link)
    assert [each.evidence for each in node.said("crio-runtime")] == [f"CRI-O's handler nvidia is {link}"]
    assert bad(node) == []


def test_every_check_finds_a_fault() -> None:
    assert set(checks.ENGINES["crio"]) == {state.check for state in STATES}


def test_the_fix_where_systemd_runs_it(node: Node) -> None:
    handler_is_missing(node)
    (node.top / "run/systemd/system").mkdir()
    node.host.engines[:] = [Engine(**{**vars(node.host.engines[0]), "unit": "crio.service"})]
    (found,) = bad(node)
    assert found.fix == "gpushim configure crio --restart"


def test_a_program_of_nobody_knows_whom_is_not_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "DIRECTORIES", ())
    (found,) = node.said("crio-daemon")
    assert (found.verdict, "which is not asked" in found.evidence) == ("ok", True)
    assert bad(node) == []
