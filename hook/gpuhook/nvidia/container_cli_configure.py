"""`nvidia-container-cli configure`: give a created container what the command line says.

`ctr run --gpus` before containerd 2.3 (through `containerd oci-hook`), nerdctl, enroot, Apptainer and scripts call
it. The options become a request; the decision and the ways into the container are those of the hook alone.

With --pid, the container is that process's, which waits in a mount namespace of its own. Without it, this process is
in the container's mount namespace itself, as when enroot and Apptainer call it.
"""

from __future__ import annotations

import posix
import time

from gpuhook import prestart, standalone
from gpuhook.confine import confine
from gpuhook.loader.options import Options
from gpushim.decision.decide import Decision
from gpushim.ground import system
from gpushim.ground.errors import REQUEST, USAGE, GpushimError, quote
from gpushim.inventory import ensure
from gpushim.nvidia.container_cli import cli_options as cli
from gpushim.nvidia.container_cli.getopt import parse
from gpushim.oci import device_names
from gpushim.oci.authorization import Gate
from gpushim.oci.request import CAPABILITIES, LAST_CHANNEL, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from gpushim.ground.model import Policy, Snapshot
    from gpushim.nvidia.container_cli.getopt import OptionValues
    from gpushim.oci.edits import Edit

COMPAT_MODES = ("mount", "ldconfig", "disabled")
MAX_REQUIREMENTS = 32


def main(words: list[str]) -> NoReturn:
    """Run `configure` as a process: exit 0, or write one line on stderr and exit with 1."""
    prestart.main(words, _run, _say)


def _run(words: list[str]) -> None:
    posix.environ.update(prestart.isolate())
    configure(words)


def configure(words: list[str]) -> None:
    """Give a container what the options say; `words` stand behind the program's name.

    Raises:
        GpushimError: the command line is wrong, or the container cannot have what it says.
    """
    started = time.monotonic()
    global_options, command = parse(words, cli.GLOBAL, in_order=True)
    options, arguments = parse(command[1:], cli.COMMANDS["configure"])
    rootfs, pid, names = _rootfs(arguments), _pid(options), cli.list_names(options)
    if not pid and "no-cgroups" not in names:
        raise GpushimError(
            "without --pid the container's cgroup is not known; add --no-cgroups, or name the container's process",
            USAGE,
        )
    decision = Decision({"container": rootfs, "by": "nvidia-container-cli"}, started)
    try:
        decision.inventory = host = _inventory(system.config_path(), system.state_dir())
        cli.check_root(global_options, host["driver"]["root"])
        decision.take(request(options, host["policy"]))
        decision.plan({"rootfs": rootfs, "userns": False, "hook": ""})
        if not host["policy"]["hook"]["device-rules"]:
            names.add("no-cgroups")
        finishing = _options(decision.edits, options, global_options)
        if decision.limits:
            from gpuhook import cgroup_limits  # most containers have no limit
            from gpuhook.inject import roots

            cgroup_limits.limit_decided(decision, {}, roots.process_of(pid) if pid else "")
        confine(host["policy"]["log"]["file"], finishing.log)  # not before: a refresh needs more than a hook
        _land(decision.edits, names, finishing, pid, host["driver"]["dev-root"])
    except GpushimError as error:
        decision.record(str(error))
        raise
    decision.record()


def _inventory(config: str, state: str) -> Snapshot:
    snapshot = ensure.read(config, state)
    if snapshot is None:
        from gpushim.inventory import renew  # some 10 ms with what it imports, beside the hundreds of a refresh

        snapshot = renew.snapshot(config, state)
    return snapshot


def request(options: OptionValues, policy: Policy) -> Request:
    """Read options as what a container asks for; what the policy forbids containers does not bind the caller.

    Raises:
        GpushimError: a value is malformed.
    """
    text, devices = cli.read_devices(options, policy["cdi"]["kind"])
    requirements = [("--require", value) for name, value in options if name == "require" and value.strip()]
    if len(requirements) > MAX_REQUIREMENTS:
        raise GpushimError(f"more than {MAX_REQUIREMENTS} --require are given", USAGE)
    mig_config, mig_monitor = cli.has_only_all(options, "mig-config"), cli.has_only_all(options, "mig-monitor")
    if (mig_config or mig_monitor) and any(item[0].startswith("mig-") for item in devices):
        name = "mig-config" if mig_config else "mig-monitor"
        raise GpushimError(f"all: cannot enable {name} with specific MIG devices selected", REQUEST)
    gate = Gate(lambda: True, policy, [], {})  # whoever may call this can do all that it does without it
    return Request(
        "--device",
        text,
        devices,
        capabilities=[name for name in CAPABILITIES if name in cli.list_names(options)],
        requirements=[] if policy["requests"]["disable-require"] else requirements,
        imex=_channels(options, gate),
        mig_config=mig_config,
        mig_monitor=mig_monitor,
        privileged=True,
        ignored=gate.ignored,
    )


def _channels(options: OptionValues, gate: Gate) -> list[int]:
    words = cli.collect_words(options, "imex-channel")
    for word in words:
        if not 0 <= device_names.number(word) <= LAST_CHANNEL:
            raise GpushimError(f"--imex-channel={quote(word)}: want a number from 0 to {LAST_CHANNEL}", USAGE)
    if words and not gate.lets("imex", "option", "--imex-channel adds no IMEX channel"):
        return []
    return list(dict.fromkeys([int(word) for word in words]))


def _rootfs(arguments: list[str]) -> str:
    path = arguments[0] if len(arguments) == 1 else ""
    if not path.startswith("/") or not path.strip("/") or "\0" in path:
        raise GpushimError("invalid rootfs directory; want one absolute path behind the options, and not /", USAGE)
    return path


def _pid(options: OptionValues) -> int:
    """Return the container's process, or 0 if this process is in the container's mount namespace itself."""
    pid = 0
    for name, value in options:
        if name == "pid":
            pid = device_names.number(value)
            if pid <= 0:
                raise GpushimError(f"--pid={quote(value)}: invalid process identifier", USAGE)
    return pid


def _options(planned: list[Edit], options: OptionValues, global_options: OptionValues) -> Options:
    (hook,) = [edit.value for edit in planned if edit.kind == "hook"]
    finishing = Options(hook["args"][2:])
    for name, value in options:
        if name == "cuda-compat-mode" and value not in COMPAT_MODES:
            raise GpushimError(f"--cuda-compat-mode={quote(value)}: want one of {', '.join(COMPAT_MODES)}", USAGE)
        if name == "no-cntlibs" or value == "disabled":
            finishing.driver = finishing.cuda = ""
    finishing.socket = [pair for pair in finishing.socket if not cli.is_left_out(cli.list_names(options), pair[1])]
    for name, value in global_options:
        if name == "debug" and value.startswith("/"):
            finishing.log = value
    return finishing


def _land(planned: list[Edit], names: set[str], options: Options, pid: int, dev_root: str) -> None:
    kinds = {"rule": "no-cgroups", "node": "no-devbind"}
    granted = [
        edit
        for edit in planned
        if kinds.get(edit.kind) not in names
        and not (edit.kind == "mount" and cli.is_left_out(names, edit.value["destination"]))
    ]
    standalone.land(granted, options, pid, dev_root)


def _say(error: Exception) -> int:
    try:
        posix.write(2, (cli.format_error(error) + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # nobody listens
    return 1
