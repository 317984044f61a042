"""`gpushim cdi validate`: what is wrong with CDI specs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from gpushim.cdi import spec_text, specs
from gpushim.cdi import validate as checks
from gpushim.cli import show
from gpushim.cli.cdi import output
from gpushim.ground import seen
from gpushim.ground.errors import GpushimError


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE|DIRECTORY|-]...")
@show.format_option("text", "json")
def validate(paths: tuple[str, ...], form: str) -> None:
    """Check CDI specs: their form, and what engines demand beyond it.

    Without arguments, all files of the directories where this host's specs are. Each finding is a line on stdout;
    an error makes the exit code 1, a warning does not.
    """
    bad = files = 0
    findings = []
    # Default directories that do not exist have no specs.
    for path in paths or [folder for folder in output.spec_dirs([]) if not seen.absent(folder)]:
        for file, level, sentence in _directory(path) if os.path.isdir(path) else _file(path):
            files += not sentence
            bad += level == checks.ERROR
            if sentence:
                findings.append({"file": file, "level": level, "sentence": sentence})
    if form == "json":
        show.emit(form, findings)
    else:
        for finding in findings:
            show.say(f"{finding['file']}: {finding['level']}: {finding['sentence']}")
    show.say(f"{files} specs checked, {bad} errors", error=True)
    click.get_current_context().exit(1 if bad else 0)


def _file(path: str, regular: bool = False) -> Iterator[tuple[str, str, str]]:
    """Yield a line without a sentence for the file itself, then its findings."""
    yield path, "", ""
    try:
        spec, _ = spec_text.read(path, regular)
    except GpushimError as error:
        yield path, checks.ERROR, str(error).replace(path, "it", 1)
        return
    for level, sentence in checks.findings(spec):
        yield path, level, sentence


def _directory(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the findings of a directory's files, and those about devices that are in two files."""
    bad = set()
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(specs.SUFFIXES))
    except OSError as error:
        yield path, checks.ERROR, f"it cannot be read: {error.strerror}"
        return
    for name in names:
        for finding in _file(os.path.join(path, name), regular=True):
            if finding[1] == checks.ERROR:
                bad.add(finding[0])
            yield finding
    good, problems = specs.load([path])
    owners: dict[str, str] = {}
    for file, _, document in good:
        for device in document["devices"]:
            name = f"{document['kind']}={device['name']}"
            if owners.setdefault(name, file) != file:
                yield file, checks.ERROR, f"{name} is in {owners[name]} too: engines take neither; remove one"
    for problem in problems:
        file, _, sentence = problem.partition(": ")
        if file not in bad:
            yield file, checks.WARNING, f"gpushim does not use it: {sentence}"
