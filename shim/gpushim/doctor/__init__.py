"""Find out what is wrong with this host: checks that look and change nothing.

A check is a function that takes a Host and yields findings; checks.py lists them by name and runs them, each within a
deadline. Programs that a check starts have deadlines of their own (engines/processes/ask.py).
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gpushim.config import policy
from gpushim.engines.processes import kubelets, programs, running, table, units
from gpushim.engines.settings.setup import HOOK, PROGRAM
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure, modules, platforms, procfs
from gpushim.paths import rooted
from gpushim.refresh import keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushim.engines.processes.running import Engine
    from gpushim.ground.model import Config, DriverPolicy, Node

OK, SKIPPED, WARNING, BROKEN = "ok", "skipped", "warning", "broken"
T = TypeVar("T")
UNITS = ("/etc", "/run", "/usr/lib", "/lib")
REFRESH = "gpushim refresh"
HEAD_LIMIT = 4096  # bytes of a program, in which gpushim's name it


@dataclass(frozen=True)
class Finding:
    """A result of a check.

    Attributes:
        verdict: OK, SKIPPED (there is nothing to check), WARNING or BROKEN.
        fix: a command for a shell, or a sentence where no command on this host helps, which may end with
            "; then COMMAND"; "" where nothing is to be fixed. Root runs it, unless it says otherwise. Paths and other
            words from outside are quoted as one word of the shell, with no apostrophe beside them.
        blocks: the fixes that cannot work before this one's, if it is BROKEN: the beginning of a check's name, and of
            a command in its fix.
    """

    verdict: str
    evidence: str
    fix: str = ""
    check: str = ""
    blocks: tuple[tuple[str, str], ...] = ()

    def data(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("verdict", "evidence", "fix", "check")}


def _code() -> str:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    above = os.path.dirname(package)
    # In a package or a checkout all of it is gpushim's; in pip's directory it is not.
    return above if os.path.basename(above) in ("gpushim", "shim") else package


@dataclass
class Host:
    """The host, as checks look at it.

    Attributes:
        top: put before the host's own paths in tests.
        config: path of config.toml.
        state: the directory of the snapshot.
        settings: the policy, with defaults for wrong values of config.toml.
        problem: an error in config.toml, or "".
        engines: those that run.
        impostors: processes that only call themselves an engine.
        named: engines that the user named, keys of checks.ENGINES.
        kubelet_root_dir: --root-dir of the running kubelet, or "".
        code: the directory of the code that engines run.
        answers: slow answers, for the next check that needs them.
    """

    top: str = ""
    config: str = system.CONFIG_FILE
    state: str = system.STATE_DIR
    settings: Config = field(default_factory=policy.defaults)
    problem: str = ""
    engines: list[running.Engine] = field(default_factory=list)
    impostors: list[running.Impostor] = field(default_factory=list)
    named: tuple[str, ...] = ()
    kubelet_root_dir: str = ""
    code: str = field(default_factory=_code)
    answers: dict[str, Any] = field(default_factory=dict)

    @property
    def driver(self) -> DriverPolicy:
        return self.settings["driver"]

    @property
    def kubelet(self) -> str:
        """Kubelet's directory by the device plugin's settings; a node of Kubernetes has it."""
        return self.top + self.settings["device-plugin"]["kubelet-dir"]

    @property
    def proc(self) -> str:
        return ensure.proc_dir(self.driver["root"])

    @property
    def sys(self) -> str:
        return modules.sys_dir(self.driver["root"])

    def running(self, *names: str) -> list[running.Engine]:
        return [engine for engine in self.engines if engine.name in names]

    def program(self, *names: str) -> str:
        """Return the first of these programs that may be executed; "" if there is none."""
        return next((path for name in names if (path := programs.find(name, top=self.top))), "")

    def unit(self, name: str) -> str:
        """Return the path of a systemd unit; "" if there is none, or systemd does not run."""
        if not os.path.isdir(self.top + system.SYSTEMD):
            return ""
        paths = [f"{self.top}{folder}/systemd/system/{name}" for folder in UNITS]
        return next((path for path in paths if os.path.exists(path)), "")

    @property
    def by_node(self) -> bool:
        """Whether gpushim-node has installed gpushim here, and no package."""
        return os.path.exists(self.top + keep.RECORD)

    def install(self, files: str) -> str:
        """Return the fix for missing files of gpushim's; `files` names them, as the object of a clause."""
        if self.by_node:
            return f"delete gpushim-node's pod on this node with kubectl: its daemon set makes another, with {files}"
        return f"install gpushim's package, which brings {files}"

    def start(self, name: str) -> str:
        return units.fix("start", table.ENGINES[name].unit, top=self.top)

    def restart(self, engine: Engine) -> str:
        return units.fix("restart", table.of(engine.name).unit, engine, self.top)

    def for_pods(self, name: str) -> bool:
        """Return whether an engine needs a handler of ours: it was named, or this is a node of Kubernetes."""
        return bool({name, "kubernetes"} & {*self.named}) or os.path.isdir(self.kubelet)

    def once(self, key: str, ask: Callable[[], T]) -> T:
        if key not in self.answers:
            self.answers[key] = ask()
        answer: T = self.answers[key]
        return answer

    def has_driver(self) -> bool:
        """Return whether NVIDIA's kernel module is loaded; without it, checks of the driver are skipped."""
        return procfs.module_version(self.proc) is not None

    def platform(self, notes: list[str]) -> str:
        """Return "wsl", "tegra" or "native"; notes get the problems of the platform."""
        other_system = platforms.find(self.driver, notes)
        return other_system["platform"] if other_system else "native"

    def platform_nodes(self) -> dict[str, Node]:
        other_system = platforms.find(self.driver, [])
        return other_system["nodes"] if other_system else {}


def look(named: tuple[str, ...] = ()) -> Host:
    """Return the host, with the engines that the user named.

    Raises:
        GpushimError: GPUSHIM_CONFIG or GPUSHIM_STATE is no absolute path.
    """
    engines, impostors = running.look()
    host = Host(
        config=system.config_path(),
        state=system.state_dir(),
        engines=engines,
        impostors=impostors,
        named=named,
        kubelet_root_dir=kubelets.root_dir(),
    )
    try:
        host.settings = policy.load(host.config)
    except GpushimError as error:
        host.problem, host.settings = str(error), policy.usable(host.config)
    return host


def ok(evidence: str) -> Finding:
    return Finding(OK, evidence)


def skipped(evidence: str) -> Finding:
    return Finding(SKIPPED, evidence)


def warning(evidence: str, fix: str) -> Finding:
    """Return a finding: containers may get GPUs, but something is not as it should be."""
    return Finding(WARNING, evidence, fix)


def broken(evidence: str, fix: str, blocks: tuple[tuple[str, str], ...] = ()) -> Finding:
    """Return a finding: containers get no GPUs, or not all that they ask for."""
    return Finding(BROKEN, evidence, fix, blocks=blocks)


def restarting(command: str, restart: str) -> str:
    """Return `gpushim configure` with a restart, of `units.fix`: its own --restart where systemd can do it."""
    return f"{command} --restart" if restart.startswith("systemctl") else then(command, restart)


def then(command: str, action: str) -> str:
    """Return a shell command followed by `action`, another command or a sentence of `units.fix`."""
    return f"{command}{' &&' if action.startswith(('systemctl ', 'service ', '/')) else '; then'} {action}"


def corrected(path: str) -> str:
    return f"correct {shlex.quote(path)}"


def pods(component: str) -> str:
    """Return the fix for a daemon set of gpushim's without a ready pod on this node."""
    labels = f"app.kubernetes.io/name=gpushim,app.kubernetes.io/component={component}"
    return (
        f"see why the daemon set gpushim-{component} has no pod on this node that is Ready (`kubectl get pods -A -o "
        f"wide -l {labels}` lists them), or install gpushim's chart again if there is no such daemon set"
    )


def ours(program: str) -> bool:
    """Return whether a program is one of gpushim's: scripts, which name it."""
    try:
        with open(program, "rb", opener=rooted.nonblocking) as file:
            head = file.read(HEAD_LIMIT)
    except OSError:
        return False
    return head.startswith(b"#!") and any(word in head for word in (b"gpuhook", HOOK.encode(), PROGRAM.encode()))


def text(path: str, limit: int = 1 << 20) -> str:
    """Read a file of the host's; "" if there is none, or it cannot be read.

    Raises:
        PermissionError: this user may not, which ends the check with that finding (checks.py).
    """
    try:
        with open(path, encoding="utf-8", errors="replace", opener=rooted.nonblocking) as file:
            return file.read(limit)
    except PermissionError:
        raise
    except OSError:
        return ""


def listing(folder: str) -> Iterator[str]:
    """List the paths in a directory, sorted; none if it is missing or cannot be read.

    Raises:
        PermissionError: as `text` does.
    """
    try:
        names = sorted(os.listdir(folder))
    except PermissionError:
        raise
    except OSError:
        return
    yield from (f"{folder}/{name}" for name in names)


def some(names: list[str], limit: int = 4) -> str:
    """Join names for a sentence, those beyond the limit as a number."""
    count = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {count} more" if count > 0 else "")
