"""Find out what is wrong with this host: checks that look and change nothing.

A check is a function that takes a Host and yields what it found; checks.py lists them by name and runs them, each
within a deadline. Programs that a check starts have deadlines of their own (engines/processes/ask.py).
Out of scope: printing (cli/doctor.py); fixing, which the findings tell how to do.
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
HEAD_LIMIT = 4096  # bytes of a program that tell whose it is


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        verdict: OK, SKIPPED (there is nothing to check), WARNING or BROKEN.
        evidence: what was seen, as a sentence.
        fix: a command for a shell, or a sentence about what no command on this host does, which may end with
            "; then COMMAND"; "" where nothing is to be fixed. Root runs it, unless it says otherwise. Paths and other
            words from outside are quoted as one word of the shell, with no apostrophe beside them.
        check: name of the check.
        blocks: which fixes cannot work before this one's, if it is BROKEN: the beginning of a check's name, and of a
            command in its fix.
    """

    verdict: str
    evidence: str
    fix: str = ""
    check: str = ""
    blocks: tuple[tuple[str, str], ...] = ()

    def data(self) -> dict[str, str]:
        """Return it for JSON."""
        return {name: getattr(self, name) for name in ("verdict", "evidence", "fix", "check")}


def _code() -> str:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    above = os.path.dirname(package)
    # In a package or a checkout all of it is gpushim's; in pip's directory it is not.
    return above if os.path.basename(above) in ("gpushim", "shim") else package


@dataclass
class Host:
    """What the checks look at.

    Attributes:
        top: what comes before the host's own paths: "" but for tests.
        config: path of config.toml.
        state: the directory of the snapshot.
        settings: the policy; the defaults for what is wrong in config.toml.
        problem: what is wrong with config.toml, or "".
        engines: those that run.
        impostors: processes that only call themselves an engine.
        named: engines that the user named, keys of checks.ENGINES.
        kubelet_root_dir: the directory that the kubelet which runs was told (--root-dir); "" if none was.
        code: the directory of the code that engines run.
        answers: slow answers, kept for the next check that needs them.
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
        """The policy's section about the driver."""
        return self.settings["driver"]

    @property
    def kubelet(self) -> str:
        """Kubelet's directory as the device plugin has it; one that is there tells a node of Kubernetes."""
        return self.top + self.settings["device-plugin"]["kubelet-dir"]

    @property
    def proc(self) -> str:
        """Where the procfs that shows the driver is mounted."""
        return ensure.proc_dir(self.driver["root"])

    @property
    def sys(self) -> str:
        """Where the sysfs that shows the GPUs is mounted."""
        return modules.sys_dir(self.driver["root"])

    def running(self, *names: str) -> list[running.Engine]:
        """Return the engines of these names that run."""
        return [engine for engine in self.engines if engine.name in names]

    def program(self, *names: str) -> str:
        """Find the first of these programs that may be executed; "" if there is none."""
        return next((found for name in names if (found := programs.find(name, top=self.top))), "")

    def unit(self, name: str) -> str:
        """Return where a systemd unit is; "" if there is none, or systemd does not run."""
        if not os.path.isdir(self.top + system.SYSTEMD):
            return ""
        places = [f"{self.top}{folder}/systemd/system/{name}" for folder in UNITS]
        return next((place for place in places if os.path.exists(place)), "")

    @property
    def by_node(self) -> bool:
        """Whether gpushim-node has put gpushim here, and no package."""
        return os.path.exists(self.top + keep.RECORD)

    def install(self, what: str) -> str:
        """Say how files of gpushim's that are missing come here; `what` they are, as the object of a clause."""
        if self.by_node:
            return f"delete gpushim-node's pod on this node with kubectl: its daemon set makes another, with {what}"
        return f"install gpushim's package, which brings {what}"

    def start(self, name: str) -> str:
        """Say how an engine is started, by its name in table.ENGINES."""
        return units.fix("start", table.ENGINES[name].unit, top=self.top)

    def restart(self, engine: Engine) -> str:
        """Say how an engine that runs is restarted."""
        return units.fix("restart", table.of(engine.name).unit, engine, self.top)

    def for_pods(self, name: str) -> bool:
        """Say whether an engine is to have a handler of ours: somebody named it, or this is a node of Kubernetes."""
        return bool({name, "kubernetes"} & {*self.named}) or os.path.isdir(self.kubelet)

    def once(self, key: str, ask: Callable[[], T]) -> T:
        """Return the answer to a question that is asked only once."""
        if key not in self.answers:
            self.answers[key] = ask()
        found: T = self.answers[key]
        return found

    def has_driver(self) -> bool:
        """Say whether NVIDIA's kernel module is loaded; without it, checks of the driver are skipped."""
        return procfs.module_version(self.proc) is not None

    def platform(self, notes: list[str]) -> str:
        """Return "wsl", "tegra" or "native"; notes get what is wrong with the platform."""
        other = platforms.find(self.driver, notes)
        return other["platform"] if other else "native"

    def platform_nodes(self) -> dict[str, Node]:
        """Return the device nodes of WSL or of a Tegra; none elsewhere."""
        other = platforms.find(self.driver, [])
        return other["nodes"] if other else {}


def look(named: tuple[str, ...] = ()) -> Host:
    """Gather what the checks need; `named` are the engines that the user named.

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
    """Return a finding: all is well."""
    return Finding(OK, evidence)


def skipped(evidence: str) -> Finding:
    """Return a finding: there is nothing to check."""
    return Finding(SKIPPED, evidence)


def warning(evidence: str, fix: str) -> Finding:
    """Return a finding: containers may get GPUs, but something is not as it should be."""
    return Finding(WARNING, evidence, fix)


def broken(evidence: str, fix: str, blocks: tuple[tuple[str, str], ...] = ()) -> Finding:
    """Return a finding: containers get no GPUs, or not all that they ask for."""
    return Finding(BROKEN, evidence, fix, blocks=blocks)


def restarting(command: str, restart: str) -> str:
    """Say how `gpushim configure` is followed by a restart, from `units.fix`: by itself, where systemd can do it."""
    return f"{command} --restart" if restart.startswith("systemctl") else then(command, restart)


def then(command: str, action: str) -> str:
    """Say what follows a command for a shell: `action` is another command or a sentence, from `units.fix`."""
    return f"{command}{' &&' if action.startswith(('systemctl ', 'service ', '/')) else '; then'} {action}"


def corrected(path: str) -> str:
    """Say that a file needs correction."""
    return f"correct {shlex.quote(path)}"


def pods(component: str) -> str:
    """Say how somebody finds out why a daemon set of gpushim's has no pod on this node that is Ready."""
    labels = f"app.kubernetes.io/name=gpushim,app.kubernetes.io/component={component}"
    return (
        f"see why the daemon set gpushim-{component} has no pod on this node that is Ready (`kubectl get pods -A -o "
        f"wide -l {labels}` lists them), or install gpushim's chart again if there is no such daemon set"
    )


def ours(program: str) -> bool:
    """Say whether a program is one of gpushim's: scripts, which name it."""
    try:
        with open(program, "rb", opener=rooted.nonblocking) as file:
            head = file.read(HEAD_LIMIT)
    except OSError:
        return False
    return head.startswith(b"#!") and any(word in head for word in (b"gpuhook", HOOK.encode(), PROGRAM.encode()))


def text(path: str, limit: int = 1 << 20) -> str:
    """Read a file of the host's; "" if there is none, or it cannot be read.

    Raises:
        PermissionError: this user may not, so that nothing can be said; the check ends with that (checks.py).
    """
    try:
        with open(path, encoding="utf-8", errors="replace", opener=rooted.nonblocking) as file:
            return file.read(limit)
    except PermissionError:
        raise
    except OSError:
        return ""


def listing(folder: str) -> Iterator[str]:
    """List the paths in a directory, sorted; none if there is none, or it cannot be read.

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
    """Join names for a sentence, and count those beyond the limit."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
