"""`gpushim doctor [ENGINE...]`: find out what is wrong, and how to fix it."""

from __future__ import annotations

import difflib
from typing import Any, Optional

import click

from gpushim import doctor as diagnosis
from gpushim.cli import show
from gpushim.doctor import checks
from gpushim.doctor import report as reports

ENGINES = tuple(checks.ENGINES)
CODES = {diagnosis.WARNING: 1, diagnosis.BROKEN: 2}
COLORS = {diagnosis.WARNING: "yellow", diagnosis.BROKEN: "red"}
PROBLEMS = (diagnosis.BROKEN, diagnosis.WARNING)


class _Engine(click.Choice):  # type: ignore[type-arg]  # generic from click 8.2 on
    """An engine's name; another word is refused with the name that is most like it."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        nearest = difflib.get_close_matches(str(value), ENGINES, 1)
        if nearest and value not in ENGINES:
            self.fail(f"{value!r} is no engine; is {nearest[0]} meant?", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("engines", metavar="[ENGINE]...", nargs=-1, type=_Engine(ENGINES))
@click.option("--all", "everything", is_flag=True, help="Also show the checks that found nothing wrong.")
@click.option("--run", "containers", is_flag=True, help="Also run a container with all GPUs under each engine found.")
@click.option(
    "--report",
    metavar="FILE",
    help="Also write a file for a bug report, without secrets; - is stdout, in place of the table.",
)
@show.format_option("table", "json")
@click.pass_context
def doctor(
    context: click.Context,
    engines: tuple[str, ...],
    everything: bool,
    containers: bool,
    report: Optional[str],
    form: str,
) -> None:
    """Find out why containers do not get their GPUs, and what fixes it.

    ENGINE is docker, containerd, crio, podman or kubernetes; without one, all that are found are checked. What is
    broken comes first, then warnings; JSON always has all. Nothing is changed. The exit code is 0 if all is well, 1
    if there are warnings, 2 if something is broken.
    """
    if report == "":
        raise click.UsageError("--report needs the name of a file, or -")
    if report and report != "-":
        reports.check(report)
    with show.progress("looking at this host and its engines"):
        host = diagnosis.look(engines)
        findings = checks.run(host)
    if containers:
        from gpushim.doctor import run

        with show.progress("running containers"):
            findings += run.containers(host)
    verdict = checks.worst(findings)
    if report == "-":
        click.echo(reports.rendered(host, findings, form == "json"))
    elif form == "json":
        show.emit(form, {"verdict": verdict, "findings": [finding.data() for finding in findings]}, (), ())
    else:
        _print(findings, everything)
    if report and report != "-":
        reports.write(report, host, findings)
        show.say(f"written: {report}; read it before you pass it on", error=True)
    context.exit(CODES.get(verdict, 0))


def _print(findings: list[diagnosis.Finding], everything: bool) -> None:
    printed = [finding for kind in PROBLEMS for finding in findings if finding.verdict == kind]
    fine = [finding for finding in findings if finding.verdict not in PROBLEMS]
    printed += fine if everything else []
    if show.width() is None:
        rows = []
        for finding in printed:
            rows.append((finding.verdict, finding.check, finding.evidence))
            rows += [("", "", f"fix: {finding.fix}")] if finding.fix else []
        if rows:
            show.table(("verdict", "check", "evidence"), rows)
    else:
        for finding in printed:
            click.echo(f"{show.colored(finding.verdict, COLORS.get(finding.verdict, 'green'))}: {finding.check}")
            show.say(finding.evidence, first="  ")
            if finding.fix:
                show.command(finding.fix, "  fix: ")
    counts = ", ".join(f"{sum(finding.verdict == kind for finding in findings)} {kind}" for kind in checks.ORDER)
    show.say(counts if everything or not fine else f"{counts}; --all shows what is ok or skipped")
