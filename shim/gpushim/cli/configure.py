"""`gpushim configure ENGINE`: make a container engine use gpushim-runtime, or take that back."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from gpushim.cli import show
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import running, table, units
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import HOOK, PROGRAM, Link, Options, Plan, installed
from gpushim.ground.errors import GpushimError
from gpushim.paths import changeable


@click.group(cls=show.Commands)
def configure() -> None:
    """Make a container engine use gpushim-runtime, or take that back.

    What it sets is in a file of gpushim's own; in Docker's daemon.json it is one entry, and where containerd's
    config.toml imports no directory, a line there reads the file. A file of others is copied to NAME.before-gpushim
    when gpushim first changes it. --remove takes all these away. Where gpushim replaces or removes what somebody else
    wrote, the file as it was stays as NAME.kept-gpushim.
    """


def file_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """Return click's option for a file, "" where it is left out; an empty value (an unset variable) is an error."""

    def given(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str:
        if value == "":
            raise click.BadParameter("it is empty; name a file, or leave the option out")
        return value or ""

    return click.option(*names, metavar="FILE", callback=given, **settings)


def _command(name: str, row: table.Row) -> None:
    def run(**options: Any) -> None:
        _run(name, row, options)

    run.__doc__ = f"Make {row.title} use gpushim-runtime, or take that back."
    options = [
        file_option("--config", help="Another file than the usual: the engine's; of CRI-O and Podman gpushim's own."),
        click.option("--runtime-name", default="nvidia", show_default=True, help="The runtime's name."),
        file_option("--runtime-path", help="Another gpushim-runtime than the one here."),
        click.option("--set-as-default", is_flag=True, help="Containers get the runtime without asking for it."),
        click.option("--cdi", is_flag=True, help="Let the engine inject CDI devices."),
        *([HOOKS_OPTION] if row.hooks else []),
        *([ONLY_NEEDED] if row.handlers else []),
        click.option("--force", is_flag=True, help=FORCE),
        click.option("--remove", is_flag=True, help="Take back what gpushim added."),
        click.option("--by-hand", is_flag=True, help="With --remove: change nothing, and say how to do it by hand."),
        click.option("--files-only", is_flag=True, help=FILES_ONLY + (ALL_USUAL if name == "containerd" else "")),
        click.option("--dry-run", is_flag=True, help="Show the change as a diff, and change nothing."),
        click.option("--restart", is_flag=True, help="Restart the engine, which may end its containers, and ask it."),
        click.option(
            "--verify",
            is_flag=True,
            help="Only ask the engine whether it has the runtime; with --remove, whether it is gone.",
        ),
        show.format_option("text", "json"),
    ]
    for option in reversed(options):
        run = option(run)
    configure.command(name)(run)


def _run(name: str, row: table.Row, values: dict[str, Any]) -> None:
    module = importlib.import_module(f"gpushim.engines.{name}")
    _check(values)
    options = _options(values)
    verify, dry_run, restart = values["verify"], values["dry_run"], values["restart"]
    if values["by_hand"]:
        _by_hand(module, row, options)
        return
    plan: Plan = _find_engine(module, options) if verify else module.plan(options)
    report: dict[str, Any] = {
        "config": plan.file,
        "changes": [_change(change) for change in plan.changed],
        "links": [_link(each) for each in plan.links],
        "notes": [*plan.notes, *plan.stays.values()],
        "stays": plan.stays,
        "changed": False,
        "missing": None,
    }
    if dry_run:
        report["notes"] += _refusal(row, plan, options)
    elif not verify:
        _apply(name, row, options, plan, report)
    if verify:
        report["missing"] = module.verify(options, plan)
    elif restart and not dry_run:
        report["missing"] = _restart_and_verify(module, row, options, plan)
    elif report["changed"] and row.unit:
        knows = f"{row.title} still has the old settings" if options.remove else f"{row.title} does not know yet"
        asks = "--remove --verify" if options.remove else "--verify"
        report["notes"].append(f"{knows}: {_advice(row, options, plan)}; then {asks} asks it")
    _print(values["form"], row.title, options, report, dry_run)
    if report["missing"]:
        only = "; nothing was taken back, for --verify only asks" if verify and options.remove else ""
        raise GpushimError(f"{row.title} is not verified: {'; '.join(report['missing'])}{only}")


def _apply(name: str, row: table.Row, options: Options, plan: Plan, report: dict[str, Any]) -> None:
    """Change the engine's settings, and write into the report what was done."""
    _check_reader(row, options, plan)
    _check_programs(options, plan)
    plan.check()
    report["notes"] += files.apply(plan.changes)
    links, notes = dockerd.apply_links(plan.links) if plan.links else ([], [])
    report["links"] = [_link(each) for each in links]
    report["notes"] += notes
    report["changed"] = bool(plan.changed or links)
    if report["changed"]:
        time.sleep(2 * running.TICKS)  # then an engine that is started next has surely read the change
        report["notes"] += _of_pip(name, options)


def _check(options: dict[str, Any]) -> None:
    if options["config"] and options.get("hooks"):
        raise click.UsageError("--hooks writes beside the settings, and --config is about one file; leave out one")
    if options["verify"]:
        for name, reason in _NOT_WITH_VERIFY.items():
            if options[name]:
                raise click.UsageError(f"--verify {reason}; leave out --verify or --{name.replace('_', '-')}")


def _by_hand(module: Any, row: table.Row, options: Options) -> None:
    """Print how to take gpushim out of settings once it is gone."""
    if not options.remove:
        raise click.UsageError("--by-hand goes with --remove")
    plan = module.plan(options)
    removed = [shlex.join(["rm", change.path]) for change in plan.changed if change.new is None]
    commands = [*(plan.by_hand or removed), *(link.command for link in plan.links)]
    if commands and row.unit:
        arguments = _restarting(row, options, plan)
        commands.append(shlex.join(["systemctl", *arguments]) if arguments else f"# restart {row.process}")
    for line in [*commands, *(f"# note: {sentence}" for sentence in _refusal(row, plan, options))]:
        show.text(line)
    if not commands:
        show.say(f"# {plan.file}: nothing to take back")


def _of_pip(name: str, options: Options) -> list[str]:
    """Return what nobody does when pip or uv remove the programs that settings now name."""
    if options.remove or not os.path.dirname(os.path.dirname(__file__)).endswith("-packages/gpushim"):
        return []
    config = [f"--config={options.config}"] if options.config else []
    undo = shlex.join(["gpushim", "configure", name, "--remove", *config])
    script = shlex.quote(os.path.join(os.path.dirname(os.path.dirname(__file__)), "removed"))
    return [
        f"pip and uv remove {options.program} without a word to the engine: before, run `{undo}` and "
        f"`cp {script} ~/`; after, until the containers that were made with it have ended, "
        f"`install ~/removed {options.program}`"
    ]


def _check_programs(options: Options, plan: Plan) -> None:
    for program in dict.fromkeys([options.program, options.hook, *(link.target for link in plan.links)]):
        if program:
            changeable.check(program)


def _check_reader(row: table.Row, options: Options, plan: Plan) -> None:
    """Refuse to write an ordinary user's settings where root's engine runs alone, which does not read them."""
    if not os.geteuid() or options.remove or options.config or options.files_only or plan.engine or not row.process:
        return
    roots = [impostor.pid for impostor in running.look()[1] if impostor.name == row.process and impostor.uid == 0]
    if roots:
        raise GpushimError(
            f"{row.process} (process {roots[0]}) is root's, and none of this user's runs, so nobody reads "
            f"{plan.file}; run this as root, or with --files-only to prepare for a rootless {row.process}"
        )


def _refusal(row: table.Row, plan: Plan, options: Options) -> list[str]:
    try:
        _check_reader(row, options, plan)
        _check_programs(options, plan)
        plan.check()
    except GpushimError as error:
        return [str(error)]
    return []


def _change(change: files.Change) -> dict[str, str]:
    verb = "removed" if change.new is None else "changed"
    return {"path": change.path, "done": verb, "diff": files.diff([change])}


def _link(link: Link) -> dict[str, str]:
    return {"path": link.path, "done": "linked" if link.target else "removed", "command": link.command}


def _options(options: dict[str, Any]) -> Options:
    adding = not options["remove"] and not options["verify"]
    return Options(
        program=installed(PROGRAM, options["runtime_path"]) if adding else "",
        name=options["runtime_name"],
        config=os.path.abspath(options["config"]) if options["config"] else "",
        default=options["set_as_default"],
        cdi=options["cdi"],
        hook=installed(HOOK) if adding and options.get("hooks") else "",
        remove=options["remove"],
        force=options["force"],
        files_only=options["files_only"],
        only_needed=options.get("only_needed", False),
    )


def _find_engine(module: Any, options: Options) -> Plan:
    """Return the running engine and its file, in a plan that changes nothing.

    They are those of a removal, which can be planned in whatever state the settings are.
    """
    plan: Plan = module.plan(Options(config=options.config, remove=True))
    return replace(plan, changes=[], links=[])


def _restart_and_verify(module: Any, row: table.Row, options: Options, plan: Plan) -> list[str]:
    """Restart an engine that has a daemon, and ask it; returns what is missing."""
    if row.unit:
        arguments = _restarting(row, options, plan)
        if not arguments:
            return [_advice(row, options, plan) + "; then --verify asks it"]
        units.restart(arguments)
        plan = _find_engine(module, options)  # the process is another one now
    missing: list[str] = module.verify(options, plan)
    return missing


def _restarting(row: table.Row, options: Options, plan: Plan) -> list[str]:
    # The default unit need not read a file that somebody named, nor one of a service that does not run.
    is_clear = plan.engine or not (options.config or plan.stopped)
    return units.systemctl("restart", row.unit, plan.engine) if is_clear else []


def _advice(row: table.Row, options: Options, plan: Plan) -> str:
    if plan.stopped:
        return f"{plan.stopped} does not run; start it"
    if arguments := _restarting(row, options, plan):
        return f"restart it with `systemctl {' '.join(arguments)}`, which --restart does too"
    if plan.engine:
        return f"{units.fix('restart', row.unit, plan.engine)}, as systemd does not run it here"
    return f"no running {row.process} reads these settings; start one that does"


def _print(form: str, title: str, options: Options, report: dict[str, Any], dry_run: bool) -> None:
    if form == "json":
        click.echo(json.dumps(report, indent=2))
        return
    for change in report["changes"]:
        if dry_run:
            show.text(change["diff"])
        else:
            show.say(f"{change['done']} {change['path']}")
    for link in report["links"]:
        show.text(link["command"] if dry_run else f"{link['done']} {link['path']}")
    if not (report["changes"] or report["links"]) and report["missing"] is None:
        show.say(f"{report['config']}: nothing to {'take back' if options.remove else 'change'}")
    for note in report["notes"]:
        show.say(f"note: {note}", error=True)
    if report["missing"] == []:
        verb = "no longer has" if options.remove else "has"
        show.say(f"verified: {title} {verb} the runtime {options.name}")


FILES_ONLY = "Read the usual files, and look at no running process."
ALL_USUAL = " With --remove and without --config: those of k3s, rke2, k0s and MicroK8s, too."
FORCE = "Replace a runtime of this name that is not gpushim's; with --remove: remove one that containers need."
_NOT_WITH_VERIFY = {
    "files_only": "asks the engine that runs, and --files-only looks at none",
    "dry_run": "changes nothing in any case",
    "restart": "only asks, and --restart asks after it has restarted",
    "by_hand": "only asks, and --by-hand prints what is to be done",
    "force": "changes nothing that could be forced",
}
ONLY_NEEDED = click.option(
    "--only-needed",
    is_flag=True,
    help="Of gpushim's other runtimes leave only those that containers need; with --remove, of all.",
)
HOOKS_OPTION = click.option(
    "--hooks", is_flag=True, help="Register the hook too, for containers whose runtime is not gpushim-runtime."
)
for _name, _row in table.ENGINES.items():
    _command(_name, _row)
