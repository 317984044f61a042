"""containerd: a runtime of its CRI, which a RuntimeClass names, and what containerd makes of its settings.

The runtime goes into a file of our own where containerd imports a directory and merges what is in it, which it does
since 2.0; else into the file whose CRI settings count. Before 2.0 two things would be lost by a file too many or a
table too few: a plugin's table in an imported file replaces the whole table of the files before, and a table of
runtimes replaces the built-in one, runc's; so that entry is written too where a file has none.
Out of scope: RuntimeClass objects; `ctr run --gpus`, which looks for nvidia-container-cli on PATH.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from typing import Any

from gpushim.engines.containerd import generated, imports, process, removal, services
from gpushim.engines.containerd.imports import RUNC, File
from gpushim.engines.containerd.process import Daemon
from gpushim.engines.processes import running
from gpushim.engines.settings import dropin
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import Options, Plan, check_entry, executes_ours, is_ours
from gpushim.ground.errors import GpushimError, quote

PROGRAM = "containerd"
# Where settings are that nobody has named.
USUAL = (process.SYSTEM_CONFIG, *services.CONFIGS.values())
_HANDLER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def plan(options: Options) -> Plan:
    """Work out what to change in containerd's settings.

    Raises:
        GpushimError: a file cannot be read, understood or safely changed.
    """
    if options.files_only and options.remove and not options.config:
        return _usual(options)
    daemon = process.find(options.config, options.files_only)
    config = generated.source(daemon.config, daemon.seen(daemon.config))
    tree = imports.load(daemon, config, strict=not options.remove)
    notes = [*daemon.notes]
    if config != daemon.config:
        notes.append(f"MicroK8s makes {daemon.config} again at each start, so {config} is changed instead")
    main, check = daemon.seen(config), lambda: None
    if options.remove:
        changes = removal.changes(daemon, tree)
        check = partial(removal.check_left, daemon, tree, changes)
    else:
        _check(options, daemon, tree)
        changes = [replace(_change(options, daemon, tree, notes), main=main)]
    meant = [each.path for each in changes if not options.remove or each.new != each.old]
    return Plan([*meant, main][0], changes, notes, daemon.engine, stopped=daemon.stopped, check=check)


def _usual(options: Options) -> Plan:
    """Work out what to take out of all usual settings of containerd that are there."""
    found = [plan(replace(options, config=path)) for path in USUAL if os.path.isdir(os.path.dirname(path))]
    changes = [change for each in found for change in each.changes]
    notes = [note for each in found for note in each.notes]

    def check() -> None:
        for each in found:
            each.check()

    return Plan(found[0].config if found else USUAL[0], changes, notes, check=check)


def verify(options: Options, found: Plan) -> list[str]:
    """Ask containerd how it reads its settings and whether its CRI runs; return a sentence for each thing missing."""
    daemon = process.find(options.config, options.files_only)
    try:
        settings = process.dump(daemon)
    except GpushimError as error:
        return [str(error)]
    missing = _missing(options, daemon, settings)
    if not daemon.engine:
        start = f"; start {daemon.stopped}" if daemon.stopped else ""
        return [*missing, f"no containerd runs that reads {daemon.config}, so only the file was looked at{start}"]
    own = daemon.seen(daemon.config)  # if a service has just made it, its time tells nothing
    made = found.config == own and generated.at_each_start(daemon.config, own)
    if not made and daemon.engine.before(found.config, running.TICKS):
        missing.append(f"containerd (process {daemon.engine.pid}) runs since before {found.config} was changed")
    if missing:
        return missing
    program, problem = process.asked(daemon, settings, options.name)
    if program is None and not made and daemon.engine.before(found.config, -running.TICKS) and not problem:
        missing.append(
            f"containerd (process {daemon.engine.pid}) started as {found.config} was changed, and which of the two "
            "came first cannot be told apart; restart it"
        )
    if program is not None and is_ours(program) == options.remove:
        missing.append(f"the CRI {'still has' if options.remove else 'does not have'} the runtime {options.name}")
    return [*missing, problem] if problem else missing


def _missing(options: Options, daemon: Daemon, settings: dict[str, Any]) -> list[str]:
    """Compare what containerd reads with what is wished."""
    plugins = settings.get("plugins", {})
    table: dict[str, Any] = next(
        (plugins[key] for key in reversed(imports.CRI.values()) if "containerd" in plugins.get(key, {})), {}
    )
    engine = table.get("containerd", {})
    has = imports.is_ours(engine.get("runtimes", {}).get(options.name))
    if options.remove:
        return [f"containerd still reads the runtime {options.name}"] if has else []
    missing = [] if has else [f"{daemon.shown()} does not read the runtime {options.name} out of {daemon.config}"]
    if imports.disabled(settings):
        missing.append(f"the CRI is disabled in {daemon.config} (disabled_plugins), so there are no pods")
    if options.default and engine.get("default_runtime_name") != options.name:
        missing.append(f"the default runtime is {engine.get('default_runtime_name')}; an imported file may set it")
    if options.cdi and table.get("enable_cdi", daemon.merges) is not True:
        missing.append("CDI is not turned on (enable_cdi)")
    return missing


def _check(options: Options, daemon: Daemon, tree: list[File]) -> None:
    """Refuse what cannot work."""
    main = tree[0]
    if options.name == "runc" or not _HANDLER.fullmatch(options.name):
        raise GpushimError(
            f"{quote(options.name)} cannot be the name of a runtime for a RuntimeClass; choose another"
        )
    if main.version > 2 and (0, 0) < daemon.version < (2, 0):
        raise GpushimError(
            f"{main.path} is of version {main.version}, which {daemon.shown()} does not read; write it in version 2"
        )
    if daemon.merges and (main.version == 1 or (not main.version and imports.by_plugins(main))):
        raise GpushimError(
            f"{main.path} is of version 1, whose CRI settings {daemon.shown()} does not take; "
            "replace it with what `containerd config migrate` prints"
        )
    if options.cdi and (0, 0) < daemon.version < (1, 7):
        raise GpushimError(f"{daemon.shown()} does not do CDI, which needs 1.7; omit --cdi")


def _change(options: Options, daemon: Daemon, tree: list[File], notes: list[str]) -> Change:
    main, merges = tree[0], daemon.merges
    if any(imports.disabled(file.data) for file in tree):
        notes.append(f"the CRI is disabled in {daemon.seen(main.path)}: take it out of disabled_plugins to have pods")
    path = _lasting(options.name, daemon, tree, notes)
    template = generated.of(main.path, main.version)
    if template and path == main.path:
        return _in_template(options, daemon, tree, template, notes)
    known = imports.effective(tree, merges)
    file = next((each for each in tree if each.path == path), File(path, {}))
    version, key = _version(file, tree, merges)
    place = daemon.seen(path)
    runtimes = known.get("containerd", {}).get("runtimes", {})
    now = runtimes.get(options.name, {})
    program = imports.program(now) if options.name in runtimes else None
    check_entry(place, options.name, program, is_ours(program), options.force)
    keys = (*key, "containerd", "runtimes", options.name)
    entry, own = _entry(options, known)
    optional: dict[tuple[str, ...], Any] = {("version",): version} if version else {}
    if not merges and not runtimes:
        optional[(*keys[:-1], "runc")] = {"runtime_type": RUNC}
    optional.update({keys: entry, (*keys, "options"): own})
    settings: dict[tuple[str, ...], Any] = {(*keys, "runtime_type"): RUNC}
    settings[(*keys, "options", "BinaryName")] = options.program
    if options.name in runtimes:  # one that is there may be as it was before runc's was changed
        mine, runcs = now.get("options", {}).get("SystemdCgroup", False), own.get("SystemdCgroup", False)
        settings.update({(*keys, "options", "SystemdCgroup"): runcs} if mine != runcs else {})
    if now.get("runtime_path"):
        settings[(*keys, "runtime_path")] = ""
    if options.default:
        settings[(*key, "containerd", "default_runtime_name")] = options.name
    if options.cdi and not known.get("enable_cdi", merges):
        settings[(*key, "enable_cdi")] = True
    change_key = imports.keys(tree, file, merges) if file.data else key
    return dropin.put(removal.kind(change_key), place, settings, optional)


def _version(file: File, tree: list[File], merges: bool) -> tuple[int, tuple[str, str]]:
    """Return the version to write into a file, 0 for none, and where the file has the CRI's settings."""
    stated = file.version or tree[0].version
    if file.data and (stated or not merges or file is not tree[0]):
        return 0, imports.keys(tree, file, merges)
    version = stated or (3 if merges else 2)
    return version, ("plugins", imports.CRI[min(version, 3)])


def _in_template(options: Options, daemon: Daemon, tree: list[File], template: str, notes: list[str]) -> Change:
    """Put the runtime into the template of a file that is generated."""
    service = generated.service(template)
    known = imports.effective(tree, daemon.merges)
    keys = (*imports.keys(tree, tree[0], daemon.merges), "containerd", "runtimes", options.name)
    if options.default:
        raise GpushimError(
            f"{service} sets the default runtime itself: write `default-runtime: {options.name}` into "
            f"/etc/rancher/{service}/config.yaml, and omit --set-as-default"
        )
    if options.cdi and not known.get("enable_cdi", daemon.merges):
        raise GpushimError(f"{template} cannot turn on CDI, which {service} leaves off; omit --cdi")
    if not tree[0].data:
        raise GpushimError(f"{service} has not made {tree[0].path} yet; start it once, then try again")
    now = known.get("containerd", {}).get("runtimes", {}).get(options.name)
    if now is not None and not executes_ours(imports.program(now), daemon.engine):
        name, program = options.name, quote(imports.program(now))
        advice = "take another --runtime-name, or remove that program"
        if not generated.has(daemon.seen(template), keys):
            raise GpushimError(f"{tree[0].path}: {service} has the runtime {name}, {program}, already; {advice}")
        notes.append(f"{service} has the runtime {name}, {program}, which counts while it finds that; {advice}")
    notes.append(f"{service} makes {tree[0].path} again at each start, so its template {template} is changed instead")
    return generated.put(daemon.seen(template), keys, *_entry(options, known))


def _target(name: str, daemon: Daemon, tree: list[File]) -> str:
    """Choose the file for the runtime, as containerd names it."""
    merges = daemon.merges
    tables = [(file.path, imports.cri(tree, file, merges)) for file in tree]
    if not merges:  # the last table of the plugin is the only one that counts
        return ([path for path, table in tables if table] or [tree[0].path])[-1]
    holders = [path for path, table in tables if name in table.get("containerd", {}).get("runtimes", {})]
    return (holders or [imports.directory(daemon, tree) or tree[0].path])[-1]


def _lasting(name: str, daemon: Daemon, tree: list[File], notes: list[str]) -> str:
    """Choose the file for the runtime as `_target`, or what that is made of.

    Raises:
        GpushimError: a service makes it at each start, and of what is not known.
    """
    path, main = _target(name, daemon, tree), tree[0].path
    source = generated.dropped_in(main, daemon.seen(main))
    if source and os.path.dirname(path) != os.path.dirname(source):
        notes.append(f"k0s makes {main} again at each start, so {source} is changed, which it reads then")
        return source
    if path.startswith("/run/") and path != main:
        raise GpushimError(
            f"{path} decides about the CRI, but it would not last there: a service makes that file at each start; "
            "give the file that it is made of with --config"
        )
    return path


def _entry(options: Options, known: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a runtime and its options like the one that containers get now, above all in its use of systemd."""
    engine = known.get("containerd", {})
    runtimes = engine.get("runtimes", {})
    like: dict[str, Any] = {}
    for name in (str(engine.get("default_runtime_name")), "runc", "crun"):
        built_in = RUNC if name == "runc" else ""  # a file may add to it without its type
        entry = runtimes.get(name, {"runtime_type": ""})
        if entry.get("runtime_type", built_in) == RUNC and "nvidia" not in str(imports.program(entry)):
            like = runtimes[name]
            break
    entry = {"runtime_type": RUNC, "privileged_without_host_devices": False}
    entry.update({key: value for key, value in like.items() if key not in imports.PROGRAM and _plain(value)})
    own = {key: value for key, value in like.get("options", {}).items() if _plain(value)}
    return entry, {**own, "BinaryName": options.program}


def _plain(value: object) -> bool:
    return isinstance(value, (str, bool, int)) or (isinstance(value, list) and all(isinstance(v, str) for v in value))
