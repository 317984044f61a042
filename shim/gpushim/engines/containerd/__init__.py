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
from gpushim.engines.containerd.imports import Draft, File
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
        return _plan_usual_removals(options)
    daemon = process.find(options.config, options.files_only)
    config = services.source(daemon.config, daemon.host_path(daemon.config))
    notes = [*daemon.notes]
    changes = removal.changes(daemon, config) if options.remove else _plan_runtime(options, daemon, config, notes)
    paths = [change.path for change in changes if not options.remove or change.new != change.old]
    result = Plan([*paths, daemon.host_path(config)][0], changes, notes, daemon.engine, stopped=daemon.stopped)
    if not options.remove:
        return result
    by_hand, check = removal.by_hand(changes, config), partial(removal.check_left, daemon, config, changes)
    return replace(result, by_hand=by_hand, check=check)


def _plan_usual_removals(options: Options) -> Plan:
    """Work out what to take out of the settings of the host's own containerd and of k3s, rke2, k0s and MicroK8s."""
    plans = [plan(replace(options, config=path)) for path in USUAL if os.path.isdir(os.path.dirname(path))]
    changes = [change for plan_of_file in plans for change in plan_of_file.changes]
    notes = [note for plan_of_file in plans for note in plan_of_file.notes]
    by_hand = [text for plan_of_file in plans for text in plan_of_file.by_hand]

    def check() -> None:
        for plan_of_file in plans:
            plan_of_file.check()

    return Plan(plans[0].file if plans else USUAL[0], changes, notes, check=check, by_hand=by_hand)


def _plan_runtime(options: Options, daemon: Daemon, config: str, notes: list[str]) -> list[Change]:
    """Return the changes that add gpushim's runtime, its own file first; `notes` gets sentences for the user."""
    main_path = daemon.host_path(config)
    draft, records = _drop_former_text(daemon, config)
    tree = imports.load(daemon, config, draft)
    other_files = [file for file in tree if not file.own]
    _check(options, daemon, other_files)
    if any(imports.disabled(file.data) for file in other_files):
        notes.append(f"the CRI is disabled in {main_path}: take it out of disabled_plugins to have pods")
    k0s_folder = services.directory(config, main_path)
    folders = imports.directories(daemon, tree[0])
    if not k0s_folder and not (folders and daemon.merges) and (template := _choose_template(config, other_files)):
        return [_plan_in_template(options, daemon, other_files, template, notes), *records]
    if k0s_folder:
        path = daemon.host_path(f"{k0s_folder}/{imports.OURS}")
        own_change = _plan_drop_in(options, daemon, other_files, path, is_whole=False)
        notes.append(f"k0s makes {config} again at each start, so {path} is written, which it reads then")
    else:
        own_change, draft = _choose_drop_in(options, daemon, other_files, folders, draft)
        if not daemon.merges and imports.effective(other_files, daemon.merges):
            reader = daemon.shown() if any(daemon.version) else "containerd (its version is unknown; before 2.0)"
            notes.append(
                f"{reader} takes the CRI's settings from {own_change.path} alone, a copy of all as they are now; run "
                "this command again after changing them in any other file, or the change has no effect"
            )
    blocks = [services.plan_removal(daemon.host_path(path)) for path in services.templates(config).values()]
    return [own_change, *_plan_other_files(draft, records), *blocks]


def _choose_drop_in(
    options: Options, daemon: Daemon, other_files: list[File], folders: list[str], draft: Draft
) -> tuple[Change, Draft]:
    """Return gpushim's file where nothing read later makes it void, and the draft of the files of others for that.

    It goes into one of `folders`, which the settings import already, or else into one that they are made to import.

    Raises:
        GpushimError: wherever it is, a file that is read later replaces what it says.
    """
    config, is_whole = other_files[0].path, not daemon.merges
    for folder in folders:
        path = daemon.host_path(f"{folder}/{imports.OURS}")
        change = _plan_drop_in(options, daemon, other_files, path, is_whole)
        if not _find_overriding(options, daemon, imports.load(daemon, config, {**draft, path: change.new})):
            return change, draft
    path = daemon.host_path(f"{os.path.dirname(config)}/{imports.FOLDER}/{imports.OURS}")
    change = _plan_drop_in(options, daemon, other_files, path, is_whole)
    main_path, version = daemon.host_path(config), _file_format(daemon, other_files)
    old = draft[main_path] if main_path in draft else files.read(main_path)
    draft = {**draft, main_path: imports.importing(old, main_path, imports.own_pattern(config), version)}
    if overriding := _find_overriding(options, daemon, imports.load(daemon, config, {**draft, path: change.new})):
        raise GpushimError(
            f"{daemon.host_path(overriding)} is read after gpushim's file and replaces what that says; have it "
            f"imported before {path}, or take out what it says of the CRI"
        )
    return change, draft


def _plan_other_files(draft: Draft, records: list[Change]) -> list[Change]:
    """Return the changes of files of others, and of `records`, those that an earlier gpushim left.

    A copy of what a file was without gpushim stays beside it: made before gpushim's first change of the file, or the
    one that is among the records.
    """
    recorded = {change.path for change in records}
    changes = []
    for path, new in draft.items():
        old = files.read(path)
        has_ours = files.copy_path(path, former.AFTER) in recorded or imports.PATTERN.encode() in (old or b"")
        changes.append(Change(path, old, new, "" if has_ours else files.BEFORE))
    backups = {files.copy_path(path, files.BEFORE) for path in draft}
    return [*changes, *(record for record in records if record.path not in backups)]


def _drop_former_text(daemon: Daemon, config: str) -> tuple[Draft, list[Change]]:
    """Return what files are without what an earlier gpushim wrote, and the changes that remove its records."""
    tree = imports.load(daemon, config, {}, strict=False)
    paths = [config, *imports.own_paths(daemon, config, tree), *(file.path for file in tree)]
    draft: dict[str, bytes | None] = {}
    records = []
    for path in dict.fromkeys([*paths, *services.templates(config).values()]):
        host_path = daemon.host_path(path)
        records_of_file = former.records(host_path)
        records += records_of_file
        content = files.read(host_path) if records_of_file and not path.endswith(".tmpl") else None
        if content is not None and (path == config or not own.is_own(content)):
            draft[host_path] = former.without(host_path, content)
    return draft, records


def outdated(daemon: Daemon) -> str:
    """Return the path of gpushim's file if others have changed the CRI's settings since it has a copy; "" if not."""
    tree = imports.load(daemon, daemon.config, {}, strict=False)
    copies = [file for file in tree if file.own]
    for file in copies[-1:] if (0, 0) < daemon.version < (2, 0) else []:
        own_path = daemon.host_path(file.path)
        other_files = [member for member in tree if not member.own]
        for name, entry in imports.containerd_table(tree, file, daemon.merges).get("runtimes", {}).items():
            if imports.is_ours(entry):
                options = Options(imports.program(entry), name, force=True)
                change = _plan_drop_in(options, daemon, other_files, own_path, is_whole=True)
                return own_path if change.new != change.old else ""
    return ""


def _file_format(daemon: Daemon, other_files: list[File]) -> int:
    """Return the version of the form of settings that gpushim's file is to state; 0 for none, which means 1."""
    stated = [file.version for file in (other_files[:1] if daemon.merges else other_files) if file.version]
    if stated:
        return stated[-1]
    return 0 if any(imports.by_plugins(file) for file in other_files) else 3 if daemon.merges else 2


def _plan_drop_in(options: Options, daemon: Daemon, other_files: list[File], path: str, is_whole: bool) -> Change:
    """Return the change of gpushim's own file; `is_whole`: it is to have all of the CRI's settings."""
    version = _file_format(daemon, other_files)
    name = imports.CRI[min(version or 1, 3)]
    cri_data = imports.effective(other_files, daemon.merges)
    runtimes = cri_data.get("containerd", {}).get("runtimes", {})
    present_program = imports.program(runtimes[options.name]) if options.name in runtimes else None
    check_entry(
        daemon.host_path(other_files[0].path), options.name, present_program, is_ours(present_program), options.force
    )
    own_table = toml.table(own.data(path, files.read(path)), "plugins", name)
    made = {
        runtime_name: entry
        for runtime_name, entry in toml.table(own_table, "containerd", "runtimes").items()
        if imports.is_ours(entry)
    }
    programs = {
        **{runtime_name: imports.program(entry) for runtime_name, entry in made.items()},
        options.name: options.program,
    }
    settings: dict[str, Any] = deepcopy(cri_data) if is_whole else {}
    containerd_table = settings.setdefault("containerd", {})
    entries = containerd_table.setdefault("runtimes", {})
    if is_whole and not entries:
        entries["runc"] = {"runtime_type": RUNC}
    for runtime_name, program in programs.items():
        entries[runtime_name] = _entry(program, cri_data, {} if is_whole else runtimes.get(runtime_name, {}))
    default = options.name if options.default else toml.table(own_table, "containerd").get(_DEFAULT)
    if default in programs:
        containerd_table[_DEFAULT] = default
    if (options.cdi or own_table.get("enable_cdi")) and not cri_data.get("enable_cdi", daemon.merges):
        settings["enable_cdi"] = True
    stated = {"version": version} if version else {}
    return own.plan_content(path, PROGRAM, {**stated, "plugins": {name: settings}})


def _find_overriding(options: Options, daemon: Daemon, tree: list[File]) -> str:
    """Return the path of the file that makes gpushim's void, as it is read later; "" if none does."""
    containerd_table = imports.effective(tree, daemon.merges).get("containerd", {})
    entry = containerd_table.get("runtimes", {}).get(options.name, {})
    if imports.program(entry) == options.program and (
        not options.default or containerd_table.get(_DEFAULT) == options.name
    ):
        return ""
    paths = [file.path for file in tree if not file.own and imports.cri(tree, file, daemon.merges)]
    return [tree[0].path, *paths][-1]


def _choose_template(config: str, other_files: list[File]) -> str:
    """Return the template to which a runtime is to be added; "" if the settings are not made of one."""
    if config.endswith(services.MICROK8S):
        return config
    return services.templates(config).get(min(max(other_files[0].version, 2), 3), "")


def _plan_in_template(
    options: Options, daemon: Daemon, other_files: list[File], template: str, notes: list[str]
) -> Change:
    main = other_files[0]
    service = services.title(template)
    cri_data = imports.effective(other_files, daemon.merges)
    keys = (*imports.keys(other_files, main, daemon.merges), "containerd", "runtimes", options.name)
    if options.default:
        advice = f"write `default-runtime: {options.name}` into /etc/rancher/{service}/config.yaml"
        advice = advice if template != main.path else "name the runtime in a RuntimeClass"
        raise GpushimError(f"{service} sets the default runtime itself: {advice}, and omit --set-as-default")
    if options.cdi and not cri_data.get("enable_cdi", daemon.merges):
        raise GpushimError(f"{template} cannot turn on CDI, which {service} leaves off; omit --cdi")
    if not main.data:
        raise GpushimError(f"{service} has not made {main.path} yet; start it once, then try again")
    present_entry = cri_data.get("containerd", {}).get("runtimes", {}).get(options.name)
    if present_entry is not None and not executes_ours(imports.program(present_entry), daemon.engine):
        name, program = options.name, quote(imports.program(present_entry))
        advice = "take another --runtime-name, or remove that program"
        if not services.has(daemon.host_path(template), name):
            raise GpushimError(f"{main.path}: {service} has the runtime {name}, {program}, already; {advice}")
        notes.append(f"{service} has the runtime {name}, {program}, which counts while it finds that; {advice}")
    made = "containerd.toml" if template == main.path else main.path
    notes.append(f"{service} makes {made} again at each start, so its template {template} is changed instead")
    return services.plan_block(daemon.host_path(template), keys, _entry(options.program, cri_data, {}))


def _entry(program: str, cri_data: dict[str, Any], namesake: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime like the one that containers get now, above all in its use of systemd.

    Args:
        cri_data: the CRI's settings without gpushim's.
        namesake: a runtime of this name there, into which this one is merged; {} if none is.
    """
    containerd_table = cri_data.get("containerd", {})
    runtimes = containerd_table.get("runtimes", {})
    like: dict[str, Any] = {}
    for name in (str(containerd_table.get(_DEFAULT)), "runc", "crun"):
        built_in = RUNC if name == "runc" else ""  # a file may add to it without its type
        entry = runtimes.get(name, {"runtime_type": ""})
        like_program = imports.program(entry)
        if entry.get("runtime_type", built_in) == RUNC and "nvidia" not in like_program and not is_ours(like_program):
            like = runtimes[name]
            break
    entry = {"runtime_type": RUNC, "privileged_without_host_devices": False}
    entry.update({key: value for key, value in like.items() if key not in imports.PROGRAM and _plain(value)})
    shared = {key: value for key, value in like.get("options", {}).items() if _plain(value)}
    if "SystemdCgroup" in namesake.get("options", {}):
        shared.setdefault("SystemdCgroup", False)
    if namesake.get("runtime_path"):
        entry["runtime_path"] = ""
    return {**entry, "options": {**shared, "BinaryName": program}}


def _plain(value: object) -> bool:
    return isinstance(value, (str, bool, int)) or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def _check(options: Options, daemon: Daemon, other_files: list[File]) -> None:
    main = other_files[0]
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


def verify(options: Options, planned: Plan) -> list[str]:
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
    host_path = daemon.host_path(daemon.config)  # if a service has just made it, its time tells nothing
    made = planned.file == host_path and services.at_each_start(daemon.config, host_path)
    if not made and daemon.engine.before(planned.file, running.TICKS):
        missing.append(f"containerd (process {daemon.engine.pid}) runs since before {planned.file} was changed")
    if missing:
        return missing
    program, problem = process.ask_cri(daemon, settings, options.name)
    if program is None and not made and daemon.engine.before(planned.file, -running.TICKS) and not problem:
        missing.append(
            f"containerd (process {daemon.engine.pid}) started as {planned.file} was changed, and which of the two "
            "came first cannot be told apart; restart it"
        )
    if program is not None and is_ours(program) == options.remove:
        missing.append(f"the CRI {'still has' if options.remove else 'does not have'} the runtime {options.name}")
    return [*missing, problem] if problem else missing


def _missing(options: Options, daemon: Daemon, settings: dict[str, Any]) -> list[str]:
    plugins = settings.get("plugins", {})
    cri_table: dict[str, Any] = next(
        (plugins[key] for key in reversed(imports.CRI.values()) if "containerd" in plugins.get(key, {})), {}
    )
    containerd_table = cri_table.get("containerd", {})
    has = imports.is_ours(containerd_table.get("runtimes", {}).get(options.name))
    if options.remove:
        return [f"containerd still reads the runtime {options.name}"] if has else []
    missing = [] if has else [f"{daemon.shown()} does not read the runtime {options.name} out of {daemon.config}"]
    if imports.disabled(settings):
        missing.append(f"the CRI is disabled in {daemon.config} (disabled_plugins), so there are no pods")
    if options.default and containerd_table.get(_DEFAULT) != options.name:
        missing.append(
            f"the default runtime is {containerd_table.get('default_runtime_name')}; an imported file may set it"
        )
    if options.cdi and cri_table.get("enable_cdi", daemon.merges) is not True:
        missing.append("CDI is not turned on (enable_cdi)")
    return missing
