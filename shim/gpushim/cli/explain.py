"""`gpushim explain`: what would this container get, and why?"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from gpushim.cli import show
from gpushim.explain import explain as story
from gpushim.ground import bounds, fastjson
from gpushim.ground.errors import BUNDLE, GpushimError
from gpushim.oci import bundle

COMPLETION_SECONDS = 2.0  # for each engine; who waits has pressed a key


def _container_names(_: click.Context, __: click.Parameter, beginning: str) -> list[str]:
    """Return the names of Docker's and Podman's containers that begin so, for a shell's completion."""
    from gpushim.engines.processes import ask, programs

    names: list[str] = []
    for program in filter(None, map(programs.find, ("docker", "podman"))):
        answer = ask.program([program, "ps", "--all", "--format={{.Names}}"], COMPLETION_SECONDS, whole=True)
        names += answer.out.split()
    return [name for name in names if name.startswith(beginning)]


@click.command()
@click.argument("targets", metavar="[BUNDLE | CONFIG.JSON | - | claim NAMESPACE/NAME]", nargs=-1)
@click.option(
    "--docker",
    default="",
    metavar="NAME",
    shell_complete=_container_names,
    help="A container or image of Docker's, or of Podman's.",
)
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable of a container that is not there yet.")
@click.option("--annotation", multiple=True, metavar="KEY=VALUE", help="An annotation of it.")
@click.option("--mount", multiple=True, metavar="SOURCE:PATH", help="A mount of it, such as /dev/null:/path.")
@click.option("--privileged", is_flag=True, help="It has CAP_SYS_ADMIN.")
@click.option(
    "--kubernetes",
    multiple=True,
    metavar="RESOURCE=NUMBER|IDS",
    help="A container that asks Kubernetes for this, such as nvidia.com/gpu=2.",
)
@click.option("--pod", default="", metavar="NAMESPACE/POD[/CONTAINER]", help="Running containers of a pod, here.")
@click.option("--state", multiple=True, metavar="DIRECTORY", help="With --pod: where to look, as of gpushim ps.")
@show.format_option("table", "json")
def explain(
    targets: tuple[str, ...],
    docker: str,
    env: tuple[str, ...],
    annotation: tuple[str, ...],
    mount: tuple[str, ...],
    privileged: bool,
    kubernetes: tuple[str, ...],
    pod: str,
    state: tuple[str, ...],
    form: str,
) -> None:
    """Show what a container would get, and why.

    Takes a bundle's directory, a config.json (- reads one from stdin), a container or image of Docker's, variables,
    or what a container of Kubernetes asks for, which gpushim-device-plugin answers by config.toml and its variables
    as they are here; or a pod that runs on this node, of which it also says what its containers have and what kubelet
    gave them. Shows the request with the source of every decision, each device node, rule, mount, variable and
    hook with its reason, or the refusal that the container would meet; then the exit code is the refusal's.

    Of a claim of Kubernetes it says what it has here; gpushim-dra-driver answers that.

    Nothing is changed: neither config.json nor what gpushim knows about the host.
    """
    has_claim = len(targets) == 2 and targets[0] == "claim"
    _check_one(targets, has_claim, docker, env or annotation or mount or privileged, kubernetes, pod)
    if state and not pod:
        raise click.UsageError("--state says where the containers of a --pod are looked for")
    if pod:
        from gpushim.cli import explain_pod

        explain_pod.explain(pod, [*state] or None, form, print_report)
        return
    if kubernetes:
        from gpushim.cli import device_plugin  # with much that the rest does without

        device_plugin.become(*(f"--explain={text}" for text in kubernetes), f"--format={form}")
    if has_claim:
        from gpushim.cli import device_plugin

        device_plugin.become(f"--explain-claim={targets[1]}", f"--format={form}", program="gpushim-dra-driver")
    if docker:
        report = _explain_container(docker)
    elif targets:
        folder, spec = _read(targets[0])
        report = story.explain(spec, folder)
    else:
        report = story.explain(*_build_spec(env, annotation, mount, privileged))
    _print_or_refuse(report, form)


def _check_one(targets: tuple[str, ...], has_claim: bool, *others: object) -> None:
    """Raise UsageError unless one thing is to be explained."""
    if targets == ("claim",) and not os.path.lexists("claim"):
        raise click.UsageError("say which claim: claim NAMESPACE/NAME")
    if [*map(bool, (targets, *others))].count(True) != 1 or len(targets) > 1 + has_claim:
        raise click.UsageError(
            "say one of: a bundle or config.json, --docker NAME, --env NAME=VALUE, --kubernetes RESOURCE=NUMBER, "
            "--pod NAMESPACE/POD, or claim NAMESPACE/NAME"
        )


def _explain_container(name: str) -> dict[str, Any]:
    from gpushim.engines.docker import inspect  # a fifth of the command's time, with an HTTP client

    container = inspect.inspect(name)
    report = story.explain(container.spec, "", container.origins, container.rootfs, container.by_hook)
    report["notes"] = [*container.notes, *report["notes"]]
    return report


def _print_or_refuse(report: dict[str, Any], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(report, indent=2))
    else:
        print_report(report)
    if report["refusal"]:
        raise GpushimError(report["refusal"]["sentence"], report["refusal"]["exit_code"])


def _read(target: str) -> tuple[str, Any]:
    """Read a config.json; return its bundle's directory and its content."""
    if target == "-":
        try:
            data = sys.stdin.buffer.read(bounds.CONFIG_JSON + 1)
        except OSError as error:
            raise GpushimError(f"stdin cannot be read: {error.strerror}", BUNDLE) from None
        if len(data) > bounds.CONFIG_JSON:
            raise GpushimError(f"stdin has more than {bounds.CONFIG_JSON} bytes", BUNDLE)
        return "", fastjson.loads(data, "stdin")
    path = f"{target.rstrip('/') or '/'}/config.json" if os.path.isdir(target) else target
    return os.path.dirname(path) or ".", fastjson.loads(bundle.read(path)[0], path)


def _build_spec(
    env: tuple[str, ...], annotation: tuple[str, ...], mount: tuple[str, ...], privileged: bool
) -> tuple[dict[str, Any], str, dict[str, str]]:
    """Write a config.json from options; return it, its directory, which is "", and who set what."""
    mounts = [_split_pair(text, ":", "--mount") for text in mount]
    annotations = dict(_split_pair(text, "=", "--annotation") for text in annotation)
    names = [_split_pair(text, "=", "--env")[0] for text in env]
    spec = story.build_spec(list(env), privileged, annotations, mounts)
    return spec, "", dict.fromkeys([*names, *annotations, *(path for _, path in mounts)], "the command line")


def _split_pair(text: str, sign: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition(sign)
    if not name or not separator:
        raise click.UsageError(f'{option} is "{text}"; write two parts with {sign} between them')
    return name, value


def print_report(report: dict[str, Any]) -> None:
    for note in report["notes"]:
        show.say(f"note: {note}")
    _print_section(
        "What was looked at", ("WHAT", "VALUE", "FROM", "EFFECT"), [[*row.values()] for row in report["asked"]]
    )
    if report["nothing"]:
        show.say(f"gpushim leaves this container as it is: {report['nothing']}.")
        return
    devices = [[row["item"], row["means"], ", ".join(row["uuids"])] for row in report["devices"]]
    _print_section("Devices", ("ASKED FOR", "IS", "UUID"), devices)
    _print_section("CDI devices", ("NAME", "SPEC"), [[*row.values()] for row in report["cdi"]])
    if not report["refusal"]:
        _print_section(
            "Conditions that hold", ("VARIABLE", "CONDITION"), [[*row.values()] for row in report["requirements"]]
        )
    _print_section(
        "Limits of GPU memory", ("GPU", "LIMIT", "BY", "LARGER"), [_limit_cells(limit) for limit in report["limits"]]
    )
    _print_section("Left out", ("WHAT",), [[sentence] for sentence in report["ignored"]])
    _print_section("What it gets", ("KIND", "WHAT", "WHY"), [_edit_cells(edit) for edit in report["edits"]])
    _print_section("What it does not get", ("WHAT", "WHY"), [[*row.values()] for row in report["not_given"]])


def _print_section(title: str, columns: tuple[str, ...], rows: list[list[str]]) -> None:
    if rows:
        show.say(f"{title}:")
        show.table(columns, rows)
        show.say()


def _limit_cells(limit: dict[str, Any]) -> list[str]:
    larger = [f"{row['limit'] >> 20} MiB ({row['by']})" for row in limit["also"]]
    return [limit["device"], f"{limit['limit'] >> 20} MiB", limit["by"], ", ".join(larger)]


def _edit_cells(edit: dict[str, Any]) -> list[str]:
    reason = edit["why"] + (" (is there already)" if edit["there"] else "")
    return [edit["kind"], format_value(edit["kind"], edit["value"]), reason]


def format_value(kind: str, value: Any) -> str:
    """Return the value of an edit (see gpushim.oci.edits) in a few words."""
    if kind in ("node", "set-node"):
        numbers = f" {value['type']} {value['major']}:{value['minor']}" if "major" in value else ""
        return f"{value['path']}{numbers}"
    if kind in ("mount", "set-mount"):
        # Of a driver root, whose files keep their paths, the rest of the source says nothing new.
        source = "" if value["source"].endswith(value["destination"]) else f" from {value['source']}"
        return f"{value['destination']}{source}{' (read-only)' if 'ro' in value.get('options', ()) else ''}"
    if kind == "rule":
        return "{} {}:{} {}".format(*value)
    if kind == "env":
        return "=".join(value)
    if kind in ("hook", "stage-hook"):
        stage, hook = ("prestart", value) if kind == "hook" else value
        return f"{stage}: {hook['path']}"
    return str(value)
