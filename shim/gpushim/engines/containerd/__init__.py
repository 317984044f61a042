"""containerd: a runtime of its CRI, in a file of gpushim's own that its settings import.

Before 2.0 a plugin's table in an imported file replaces the whole table of the files before, so there the file has
all of the CRI's settings, as the others have them, and runc's entry, which a table of runtimes would take away.
Where a service writes the settings at each start, the runtime goes into what they are made of (services.py).
Out of scope: RuntimeClass objects; `ctr run --gpus`, which looks for nvidia-container-cli on PATH.
"""

from __future__ import annotations

import os
import re
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from gpushim.engines.containerd import imports, process, removal, services
from gpushim.engines.containerd.imports import File
from gpushim.engines.containerd.process import Daemon
from gpushim.engines.processes import running
from gpushim.engines.settings import files, former, own, toml
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import Options, Plan, check_entry, executes_ours, is_ours
from gpushim.ground.errors import GpushimError, quote

PROGRAM = "containerd"
RUNC = "io.containerd.runc.v2"
# Where settings are that nobody has named.
USUAL = (process.SYSTEM_CONFIG, *services.CONFIGS.values())
_DEFAULT = "default_runtime_name"
_HANDLER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def plan(options: Options) -> Plan:
    """Work out what to change in containerd's settings.

    Raises:
        GpushimError: a file cannot be read, understood or safely changed.
    """
    if options.files_only and options.remove and not options.config:
        return _usual(options)
    daemon = process.find(options.config, options.files_only)
    config, notes = services.source(daemon.config, daemon.seen(daemon.config)), [*daemon.notes]
    changes = removal.changes(daemon, config) if options.remove else _configured(options, daemon, config, notes)
    path = [each.path for each in changes if not options.remove or each.new != each.old]
    meant = Plan([*path, daemon.seen(config)][0], changes, notes, daemon.engine, stopped=daemon.stopped)
    if not options.remove:
        return meant
    by_hand, check = removal.by_hand(changes, config), partial(removal.check_left, daemon, config, changes)
    return replace(meant, by_hand=by_hand, check=check)


def _usual(options: Options) -> Plan:
    """Work out what to take out of all usual settings of containerd that are there."""
    plans = [plan(replace(options, config=path)) for path in USUAL if os.path.isdir(os.path.dirname(path))]
    changes = [change for each in plans for change in each.changes]
    notes, by_hand = (
        [note for each in plans for note in each.notes],
        [text for each in plans for text in each.by_hand],
    )

    def check() -> None:
        for each in plans:
            each.check()

    return Plan(plans[0].config if plans else USUAL[0], changes, notes, check=check, by_hand=by_hand)


def _configured(options: Options, daemon: Daemon, config: str, notes: list[str]) -> list[Change]:
    """Return the changes after which the CRI has the runtime."""
    draft, records = _former(daemon, config)
    tree = imports.load(daemon, config, draft)
    others, place = [file for file in tree if not file.own], daemon.seen(config)
    _check(options, daemon, others)
    if any(imports.disabled(file.data) for file in others):
        notes.append(f"the CRI is disabled in {place}: take it out of disabled_plugins to have pods")
    k0s = services.directory(config, place)
    folders = [k0s] if k0s else imports.directories(daemon, tree[0])
    template = "" if k0s or (folders and daemon.merges) else _template(config, others)
    if template:
        return [_in_template(options, daemon, others, template, notes), *records]
    whole = not daemon.merges and not k0s
    if whole and imports.effective(others, daemon.merges):
        notes.append(f"{daemon.shown()} takes the CRI's settings from gpushim's file: do this again if others change")
    for folder in [*folders, *([] if k0s else [""])]:
        path = daemon.seen(f"{folder or f'{os.path.dirname(config)}/{imports.FOLDER}'}/{imports.OURS}")
        ours = _drop_in(options, daemon, others, path, whole)
        more = draft
        if not folder:
            old, pattern = draft.get(place, files.read(place)), imports.own_pattern(config)
            more = {**draft, place: imports.importing(old, place, pattern, _version(daemon, others))}
        later = _later(options, daemon, imports.load(daemon, config, {**more, path: ours.new}))
        if k0s or not later:
            break
    if k0s:
        notes.append(f"k0s makes {config} again at each start, so {path} is written, which it reads then")
    elif later:
        raise GpushimError(
            f"{daemon.seen(later)} is read after gpushim's file and replaces what that says; have it imported before "
            f"{path}, or take out what it says of the CRI"
        )
    blocks = [services.take_out(daemon.seen(each)) for each in services.templates(config).values()]
    return [ours, *_others_changes(more, records), *blocks]


def _others_changes(draft: dict[str, bytes | None], records: list[Change]) -> list[Change]:
    """Return the changes of files of others, of which a copy stays beside them: what was there without gpushim."""
    changes = [Change(path, files.read(path), new) for path, new in draft.items()]
    recorded = {change.path for change in records}
    backups = {files.copy_path(change.path, files.BEFORE) for change in changes}
    for place, change in enumerate(changes):
        if files.copy_path(change.path, former.AFTER) not in recorded and imports.PATTERN.encode() not in (
            change.old or b""
        ):
            changes[place] = replace(change, copy=files.BEFORE)
    return [*changes, *(record for record in records if record.path not in backups)]


def _former(daemon: Daemon, config: str) -> tuple[dict[str, bytes | None], list[Change]]:
    """Return what files are without what an earlier gpushim wrote, and the changes that remove its records."""
    tree = imports.load(daemon, config, {}, strict=False)
    paths = [config, *imports.own_paths(daemon, config, tree), *(file.path for file in tree)]
    draft: dict[str, bytes | None] = {}
    records = []
    for path in dict.fromkeys([*paths, *services.templates(config).values()]):
        place = daemon.seen(path)
        gone = former.records(place)
        records += gone
        content = files.read(place) if gone and not path.endswith(".tmpl") else None
        if content is not None and (path == config or not own.is_own(content)):
            draft[place] = former.without(place, content)
    return draft, records


def outdated(daemon: Daemon) -> str:
    """Return the path of gpushim's file if others have changed the CRI's settings since it has a copy; "" if not."""
    tree = imports.load(daemon, daemon.config, {}, strict=False)
    copies = [file for file in tree if file.own]
    for file in copies[-1:] if (0, 0) < daemon.version < (2, 0) else []:
        place, others = daemon.seen(file.path), [each for each in tree if not each.own]
        for name, entry in imports.engine_table(tree, file, daemon.merges).get("runtimes", {}).items():
            if imports.is_ours(entry):
                options = Options(imports.program(entry), name, force=True)
                change = _drop_in(options, daemon, others, place, whole=True)
                return place if change.new != change.old else ""
    return ""


def _version(daemon: Daemon, others: list[File]) -> int:
    """Return the version that gpushim's file is to state; 0 for none, which means 1."""
    stated = [file.version for file in (others[:1] if daemon.merges else others) if file.version]
    if stated:
        return stated[-1]
    return 0 if any(imports.by_plugins(file) for file in others) else 3 if daemon.merges else 2


def _drop_in(options: Options, daemon: Daemon, others: list[File], path: str, whole: bool) -> Change:
    """Return the change of gpushim's own file; `whole`: it is to have all of the CRI's settings."""
    version = _version(daemon, others)
    name = imports.CRI[min(version or 1, 3)]
    known = imports.effective(others, daemon.merges)
    runtimes = known.get("containerd", {}).get("runtimes", {})
    now = imports.program(runtimes[options.name]) if options.name in runtimes else None
    check_entry(daemon.seen(others[0].path), options.name, now, is_ours(now), options.force)
    mine = toml.table(own.data(path, files.read(path)), "plugins", name)
    made = {
        each: entry for each, entry in toml.table(mine, "containerd", "runtimes").items() if imports.is_ours(entry)
    }
    programs = {**{each: imports.program(entry) for each, entry in made.items()}, options.name: options.program}
    settings: dict[str, Any] = deepcopy(known) if whole else {}
    engine = settings.setdefault("containerd", {})
    entries = engine.setdefault("runtimes", {})
    if whole and not entries:
        entries["runc"] = {"runtime_type": RUNC}
    for each, program in programs.items():
        entries[each] = _entry(program, known, {} if whole else runtimes.get(each, {}))
    default = options.name if options.default else toml.table(mine, "containerd").get(_DEFAULT)
    if default in programs:
        engine[_DEFAULT] = default
    if (options.cdi or mine.get("enable_cdi")) and not known.get("enable_cdi", daemon.merges):
        settings["enable_cdi"] = True
    stated = {"version": version} if version else {}
    return own.put(path, PROGRAM, {**stated, "plugins": {name: settings}})


def _later(options: Options, daemon: Daemon, tree: list[File]) -> str:
    """Return the path of the file that makes gpushim's void, as it is read later; "" if none does."""
    engine = imports.effective(tree, daemon.merges).get("containerd", {})
    entry = engine.get("runtimes", {}).get(options.name, {})
    if imports.program(entry) == options.program and (not options.default or engine.get(_DEFAULT) == options.name):
        return ""
    others = [file.path for file in tree if not file.own and imports.cri(tree, file, daemon.merges)]
    return [tree[0].path, *others][-1]


def _template(config: str, others: list[File]) -> str:
    """Return the template to which a runtime is to be added; "" if the settings are not made of one."""
    if config.endswith(services.MICROK8S):
        return config
    return services.templates(config).get(min(max(others[0].version, 2), 3), "")


def _in_template(options: Options, daemon: Daemon, others: list[File], template: str, notes: list[str]) -> Change:
    service, main = services.title(template), others[0]
    known = imports.effective(others, daemon.merges)
    keys = (*imports.keys(others, main, daemon.merges), "containerd", "runtimes", options.name)
    if options.default:
        how = f"write `default-runtime: {options.name}` into /etc/rancher/{service}/config.yaml"
        how = how if template != main.path else "name the runtime in a RuntimeClass"
        raise GpushimError(f"{service} sets the default runtime itself: {how}, and omit --set-as-default")
    if options.cdi and not known.get("enable_cdi", daemon.merges):
        raise GpushimError(f"{template} cannot turn on CDI, which {service} leaves off; omit --cdi")
    if not main.data:
        raise GpushimError(f"{service} has not made {main.path} yet; start it once, then try again")
    now = known.get("containerd", {}).get("runtimes", {}).get(options.name)
    if now is not None and not executes_ours(imports.program(now), daemon.engine):
        name, program = options.name, quote(imports.program(now))
        advice = "take another --runtime-name, or remove that program"
        if not services.has(daemon.seen(template), name):
            raise GpushimError(f"{main.path}: {service} has the runtime {name}, {program}, already; {advice}")
        notes.append(f"{service} has the runtime {name}, {program}, which counts while it finds that; {advice}")
    made = "containerd.toml" if template == main.path else main.path
    notes.append(f"{service} makes {made} again at each start, so its template {template} is changed instead")
    return services.put(daemon.seen(template), keys, _entry(options.program, known, {}))


def _entry(program: str, known: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime like the one that containers get now, above all in its use of systemd.

    Args:
        program: its program.
        known: the CRI's settings without gpushim's.
        theirs: a runtime of this name there, into which this one is merged; {} if none is.
    """
    engine = known.get("containerd", {})
    runtimes = engine.get("runtimes", {})
    like: dict[str, Any] = {}
    for name in (str(engine.get(_DEFAULT)), "runc", "crun"):
        built_in = RUNC if name == "runc" else ""  # a file may add to it without its type
        entry = runtimes.get(name, {"runtime_type": ""})
        other = imports.program(entry)
        if entry.get("runtime_type", built_in) == RUNC and "nvidia" not in other and not is_ours(other):
            like = runtimes[name]
            break
    entry = {"runtime_type": RUNC, "privileged_without_host_devices": False}
    entry.update({key: value for key, value in like.items() if key not in imports.PROGRAM and _plain(value)})
    more = {key: value for key, value in like.get("options", {}).items() if _plain(value)}
    if "SystemdCgroup" in theirs.get("options", {}):
        more.setdefault("SystemdCgroup", False)
    if theirs.get("runtime_path"):
        entry["runtime_path"] = ""
    return {**entry, "options": {**more, "BinaryName": program}}


def _plain(value: object) -> bool:
    return isinstance(value, (str, bool, int)) or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def _check(options: Options, daemon: Daemon, others: list[File]) -> None:
    main = others[0]
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
    made = found.config == own and services.at_each_start(daemon.config, own)
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
