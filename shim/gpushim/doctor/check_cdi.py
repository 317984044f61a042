"""Checks of the CDI specs in the directories that engines read."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from gpushim.cdi import specs, validate, versions
from gpushim.cdi.generate import output, publish, write, written
from gpushim.doctor import (
    REFRESH,
    Finding,
    Host,
    broken,
    check_docker,
    corrected,
    entries,
    ok,
    skipped,
    some,
    untrusted,
    warning,
)
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import ask, programs, table
from gpushim.ground import seen
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.oci.edits import HOOK_NAME
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Snapshot

    Reads = tuple[tuple[tuple[int, int], str], ...]  # as table.py has it


def directories(host: Host) -> list[str]:
    """List the directories of specs, each once, even if it has several paths."""
    output_folder = os.path.dirname(output.path_of(host.settings))
    folders: dict[str, str] = {}
    for folder in (*host.settings["cdi"]["spec-dirs"], output_folder):
        folders.setdefault(os.path.realpath(folder), folder)
    return list(folders.values())


def spec(host: Host) -> Iterator[Finding]:
    """Check that refresh's spec is there, and of this snapshot."""
    path = output.path_of(host.settings)
    saved = publish.saved(path)
    snapshot, _ = ensure.last(host.config, host.state)
    if not host.settings["cdi"]["write-spec"]:
        yield skipped(f"write-spec under [cdi] in {host.config} is false")
    elif not snapshot or snapshot["error"]:
        yield _without_gpus(host, path, bool(snapshot))
    elif (expected := _expected(host, snapshot)) is None:
        yield skipped("no GPU can be used, so there is no spec (nvml says why)")
    elif _is_unused_directory(host):
        evidence = f"{path} is where neither spec-dirs under [cdi] nor engines by themselves look for CDI devices"
        yield warning(evidence, entries.build_folder_fix(host, output.DEFAULT_DIRECTORY))
    elif saved is None and (file := publish.conflicting(path, expected)[0]):
        yield ok(f"{path} is not there, for {file} has its devices")
    elif saved is None:
        yield warning(f"{path} is missing or unusable: engines find no CDI device of gpushim", _rewrite_fix(host))
    elif saved != expected and (reason := publish.emptier(path, expected, snapshot["source"])):
        yield warning(reason, f"do what nvml says; then {REFRESH}")
    elif saved != expected:
        yield broken(
            f"{path} is not of this driver and these GPUs: engines give containers what is not there",
            _rewrite_fix(host),
        )
    else:
        yield ok(f"{path} is that of the snapshot")


def _without_gpus(host: Host, path: str, listed: bool) -> Finding:
    """Judge a spec where no GPU can be given out, by the last refresh, if there was one (`listed`)."""
    if not listed:
        return skipped("there is no snapshot to compare it with")
    if not os.path.lexists(path):
        return skipped(
            f"{path} is not there while no GPU can be given out, and returns with the next successful refresh"
        )
    evidence = f"{path} is there, though no GPU can be given out: engines use it"
    return broken(evidence, f"do what snapshot says; then {_rewrite_fix(host)}")


def _is_unused_directory(host: Host) -> bool:
    """Return whether refresh writes its spec to a configured directory that no engine reads."""
    folders = (*host.settings["cdi"]["spec-dirs"], *specs.DIRECTORIES)
    return bool(host.settings["cdi"]["output-directory"]) and not entries.has_spec_folder(host, folders)


def _rewrite_fix(host: Host) -> str:
    """Return the fix by which refresh writes its spec as a file in a directory of root's alone."""
    path = output.path_of(host.settings)
    folder = os.path.dirname(path)
    above = folder
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return _move_fix(host)
    if os.path.isdir(path) and not os.path.islink(path):
        return f"{untrusted.away(path)} && {REFRESH}"
    if above != folder or not trust.others_may(os.stat(folder)):
        edited = os.path.lexists(path) and not written.ours(path)  # which refresh leaves alone
        return f"{untrusted.away(path)} && {REFRESH}" if edited else REFRESH
    command = untrusted.directory(folder)
    return f"{command} && {REFRESH}" if command else _move_fix(host)


def _move_fix(host: Host) -> str:
    return f"change output-directory under [cdi] in {shlex.quote(host.config)}; then {REFRESH}"


def _expected(host: Host, snapshot: Snapshot) -> dict[str, Any] | None:
    expected = host.settings["cdi"]
    try:
        return write.gpu_spec(snapshot, expected["kind"], expected["device-names"], [])
    except GpushimError:
        return None


def files(host: Host) -> Iterator[Finding]:
    """Check that every spec can be read and trusted."""
    documents, problems = specs.load(directories(host))
    for problem in problems:
        path = problem.partition(": ")[0]
        is_foreign = os.path.exists(path) and trust.others_may(os.stat(path))
        if path == output.path_of(host.settings) and not is_foreign:
            fix = _rewrite_fix(host)
        else:
            fix = f"{corrected(path)} or remove it: see `gpushim cdi validate`"
        if is_foreign:
            take = untrusted.directory if os.path.isdir(path) else untrusted.file
            fix = take(path) or _avoid_fix(host, path)
        yield (broken if is_foreign else warning)(f"{problem}; its devices are ignored", fix)
    if not problems:
        yield ok(f"all specs in {some(directories(host))} can be read ({len(documents)})")


def _avoid_fix(host: Host, folder: str) -> str:
    """Return how a directory where everybody makes files, as /tmp, is no longer read for specs."""
    listed = [
        directory
        for directory in host.settings["cdi"]["spec-dirs"]
        if os.path.realpath(directory) == os.path.realpath(folder)
    ]
    steps = [
        f"take {shlex.quote(directory)} out of spec-dirs under [cdi] in {shlex.quote(host.config)}"
        for directory in listed
    ]
    steps += [_move_fix(host)] if entries.has_spec_folder(host, [folder]) else []
    return "; then ".join(steps)


def conflicts(host: Host) -> Iterator[Finding]:
    """Check that no device is in two files."""
    files_by_device: dict[str, list[tuple[int, str]]] = {}
    listed, problems = specs.load(directories(host))
    for path, priority, document in listed:
        for device in document["devices"]:
            files_by_device.setdefault(f"{document['kind']}={device['name']}", []).append((priority, path))
    reported, own_path = set(), output.path_of(host.settings)
    unreadable = [problem.partition(": ")[0] for problem in problems]
    for path in unreadable:
        evidence = f"what {path} has is unknown, and an engine that can read it may find a device twice"
        yield warning(evidence, "do what cdi-files says")
    for name, hits in files_by_device.items():
        paths = sorted(path for _, path in hits)
        if len(paths) > 1 and tuple(paths) not in reported:
            reported.add(tuple(paths))
            is_same_folder = len({priority for priority, _ in hits}) < len(hits)
            evidence = f"{name} is in {' and in '.join(paths)}"
            if is_same_folder:
                removed = own_path if own_path in paths else paths[-1]
                fix = REFRESH if any(map(written.ours, paths)) else f"rm {shlex.quote(removed)}"
                yield broken(f"{evidence}: engines refuse that device", fix)
            else:  # cdi-spec needs gpushim's own
                removed = next(path for _, path in hits if path != own_path)
                yield warning(f"{evidence}: the last directory takes precedence", f"rm {shlex.quote(removed)}")
    if not reported and not unreadable:
        yield ok("no device is in two files")


def paths(host: Host) -> Iterator[Finding]:
    """Check that the files, nodes and hooks of the specs exist."""
    missing = 0
    for path, _, document in specs.load(directories(host))[0]:
        absent = [name for name in dict.fromkeys(_named(document)) if not seen.exists(name, links=False)]
        missing += len(absent)
        if absent:
            own_one = path == output.path_of(host.settings)
            fix = (
                _rewrite_fix(host)
                if own_one
                else f"let the program that wrote {shlex.quote(path)} write it again, or remove it"
            )
            yield broken(f"{path} names {some(absent)}, which does not exist: containers do not start", fix)
    if not missing:
        yield ok("all files, nodes and hooks that specs name are there")


def hooks(host: Host) -> Iterator[Finding]:
    """Check that no hook of a spec can run with an image's environment."""
    count = 0
    for path, _, document in specs.load(directories(host))[0]:
        edits = [holder.get("containerEdits") or {} for holder in (document, *document["devices"])]
        bare = sorted({name for edit in edits for name in validate.bare_hooks(edit)})
        count += len(bare)
        if bare:
            yield warning(
                f"{path} has no env for {some(bare)}: runc 1.1 runs it as root with the image's variables, "
                "LD_PRELOAD too (CVE-2025-23266)",
                f"let a newer version of the program that wrote {shlex.quote(path)} write it again, or remove it",
            )
        for program in sorted({edit for edit in _hooks(edits) if edit.rpartition("/")[2] == HOOK_NAME}):
            fix = _rewrite_fix(host)
            if path != output.path_of(host.settings):
                fix = f"let gpushim cdi generate write {shlex.quote(path)} again, or remove it"
            if finding := entries.find_changeable(f"{path} names {program}", program, fix):
                count += 1
                yield finding
    if not count:
        yield ok("all hooks of specs have an environment of their own")


def _hooks(edits: list[Any]) -> Iterator[str]:
    yield from (str(hook["path"]) for edit in edits for hook in edit.get("hooks") or ())


def _named(document: dict[str, Any]) -> Iterator[str]:
    for holder in (document, *document["devices"]):
        edits = holder.get("containerEdits") or {}
        yield from (node.get("hostPath") or node["path"] for node in edits.get("deviceNodes") or ())
        yield from (
            mount["hostPath"]
            for mount in edits.get("mounts") or ()
            if mount.get("type", "bind") in ("", "bind", "none")
        )
        for hook in edits.get("hooks") or ():
            yield hook["path"]
            args = hook.get("args") or [""]
            if args[0].rpartition("/")[2] == HOOK_NAME:  # which mounts by itself
                pairs = zip(args, args[1:])
                yield from (value.partition("::")[0] for option, value in pairs if option == "--mount")


def readable(host: Host) -> Iterator[Finding]:
    """Check that the engines here are new enough for the specs."""
    documents = {path: document for path, _, document in specs.load(directories(host))[0]}
    spec_versions = [(path, document["cdiVersion"]) for path, document in documents.items()]
    own_spec = output.path_of(host.settings)
    old = 0
    for name, (version, reads_by_version) in _engines(host).items():
        reads = next((cdi for least, cdi in reversed(reads_by_version) if version >= least), "") if version else "any"
        late = [
            path
            for path, cdi in spec_versions
            if reads and reads != "any" and versions.number(cdi) > versions.number(reads)
        ]
        old += len(late)
        label = ".".join(map(str, version))
        if own_spec in late and (groups := _groups(documents[own_spec])):
            late.remove(own_spec)
            yield warning(
                f"{name} {label} reads CDI up to {reads} and drops the groups of {own_spec}: with --device, users of "
                "a container other than root cannot open the GPUs' nodes",
                f"{' '.join(f'--group-add={gid}' for gid in groups)} beside --device, or upgrade the engine",
            )
        if late:
            yield warning(
                f"{name} {label} reads CDI up to {reads}, and {some(late)} is newer",
                "let its writer use an older cdiVersion, or upgrade the engine",
            )
    if not spec_versions:
        yield skipped("there are no CDI specs")
    elif not old:
        yield ok(f"cdiVersion {some(sorted({cdi for _, cdi in spec_versions}))}: the engines here can read it")


def _groups(document: dict[str, Any]) -> list[int]:
    """Return the groups that may use a spec's nodes, for which alone ours is of a version above 0.6.0."""
    edits = (document.get("containerEdits") or {}, *(device["containerEdits"] for device in document["devices"]))
    return sorted({gid for edit in edits for gid in edit.get("additionalGids", ())})


def _engines(host: Host) -> dict[str, tuple[tuple[int, ...], Reads]]:
    """Return each engine's version, () if it is unknown, and the CDI versions that it reads."""
    engines = {}
    for engine in host.engines:
        if reads := table.of(engine.name).cdi:
            is_docker = engine.name == dockerd.PROGRAM
            version = (
                check_docker.version_of(host, engine) if is_docker else _version(programs.find(engine.name, engine))
            )
            engines[engine.name] = (version, reads)
    for name, row in table.ENGINES.items():
        if not row.process and row.cdi and (program := host.program(name)):
            engines[name] = (_version(program), row.cdi)
    return engines


def _version(program: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)\.\d+", ask.program([program, "--version"]).out) if program else None
    return (int(match[1]), int(match[2])) if match else ()
