"""A container with all GPUs under each engine found: do its nodes open, do the driver's libraries load?

Its rootfs is made from this host's own shell and C library, so that no image is needed; an engine's remains of it are
removed afterwards.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import tarfile
import tempfile
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.doctor import (
    Finding,
    Host,
    broken,
    check_containerd,
    check_docker,
    check_podman,
    ok,
    some,
)
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import ask, programs
from gpushim.engines.settings.setup import PROGRAM, installed
from gpushim.ground.errors import GpushimError
from gpushim.ground.machines import LOADERS
from gpushim.paths import host_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.engines.processes.running import Engine

SECONDS = 60.0  # for each call of an engine
REQUEST = "NVIDIA_VISIBLE_DEVICES=all"
SHELL = "/bin/sh"
# Of glibc and GCC, which the driver's libraries may need.
NEEDED = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6")
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# The shell's own complaint is the evidence; a library that is preloaded is initialised too.
SCRIPT = f"""for node in /dev/nvidia* /dev/dxg; do
  if [ -c "$node" ]; then said=$( (: <>"$node") 2>&1 ) && said=opens; echo "node $node $said"; fi
done
for library in {" ".join(LIBRARIES)}; do echo "library $library $(LD_PRELOAD=$library {SHELL} -c : 2>&1)"; done
exit 0"""
SENTENCE = re.compile(r"gpushim(?:-hook)?: (.*?)(?:: unknown\.?)?$")  # as Docker has it
COMMAND = [SHELL, "-c", SCRIPT]


def containers(host: Host) -> list[Finding]:
    """Run a container under each engine found, and one without an engine."""
    findings = []
    try:
        with tempfile.TemporaryDirectory(prefix="gpushim-doctor-") as scratch:
            os.chmod(scratch, 0o755)  # noqa: S103 - the container of a rootless engine has another user
            root = f"{scratch}/root"
            make_root(root)
            for name, answer in _run_all(host, installed(PROGRAM), scratch, root):
                findings += [replace(finding, check=f"run-{name}") for finding in judged(answer)]
    except (GpushimError, OSError) as error:
        findings.append(replace(broken(f"no test container can be made: {error}", "correct that"), check="run"))
    return merged(findings)


def merged(findings: list[Finding]) -> list[Finding]:
    """Return findings, with one for all engines whose evidence is the same."""
    by_evidence: dict[str, list[Finding]] = {}
    for finding in findings:
        by_evidence.setdefault(f"{finding.verdict} {finding.evidence}", []).append(finding)
    rows = []
    for first, *equals in by_evidence.values():
        checks = dict.fromkeys(equal.check for equal in equals if equal.check != first.check)
        also = f"; {', '.join(checks)} the same" if checks else ""
        rows.append(replace(first, evidence=first.evidence + also))
    return rows


def judged(answer: ask.Answer) -> Iterator[Finding]:
    """Judge the answer of a test container, which has SCRIPT's output."""
    nodes = dict(re.findall(r"^node (\S+) (.*)$", answer.out, re.MULTILINE))
    libraries = dict(re.findall(r"^library (\S+) ?(.*)$", answer.out, re.MULTILINE))
    if answer.code != 0 or not libraries:
        yield _refusal(answer)
        return
    if not nodes:
        yield broken(f"a container with {REQUEST} gets no device node", f"gpushim explain --env {REQUEST}")
    for result, closed in _by_result(nodes, "opens").items():
        yield broken(
            f"{some(closed, 8)} cannot be opened in a container: {result.rpartition(': ')[2]}",
            "see what else is broken here, and `dmesg`",
        )
    for result, unloaded in _by_result(libraries, "").items():
        yield broken(
            f"{' and '.join(unloaded)} cannot be loaded in a container: {result}", f"gpushim explain --env {REQUEST}"
        )
    if nodes and {*nodes.values(), *libraries.values()} == {"opens", ""}:
        yield ok(f"{some(list(nodes), 8)} open in a container, and {' and '.join(libraries)} load")


def _by_result(results: dict[str, str], good: str) -> dict[str, list[str]]:
    """Return the names of nodes or libraries by their bad result, which has "it" for the name."""
    names: dict[str, list[str]] = {}
    for name, result in results.items():
        if result != good:
            names.setdefault(result.replace(name, "it"), []).append(name)
    return names


def _refusal(answer: ask.Answer) -> Finding:
    lines = [line for line in answer.error.splitlines() if SENTENCE.search(line)]
    # Docker's own line comes before a hint about --help.
    lines = lines or [line for line in answer.error.splitlines() if line.startswith("docker: ")]
    line = lines[-1] if lines else answer.last
    evidence = f"the container does not start: {line}"
    match = SENTENCE.search(line)
    if match and "; " in match[1]:
        return broken(evidence, match[1].rpartition("; ")[2])
    return broken(evidence, "look for these words in docs/symptoms.md and docs/errors.md")


def make_root(root: str) -> None:
    """Make a rootfs in a new directory, of the host's shell and the libraries that it and the driver need.

    Raises:
        GpushimError: this host has no glibc, without which there is no driver either.
    """
    loader = LOADERS.get(platform.machine(), "")
    listed = ask.program([loader, "--list", SHELL]) if os.path.exists(loader) else None
    if listed is None or listed.code != 0:
        raise GpushimError(f"this host's {SHELL} is not a glibc program")
    files = [SHELL, loader, *re.findall(r"=> (/\S+) \(", listed.out)]
    folder = next((os.path.dirname(path) for path in files if os.path.basename(path) == "libc.so.6"), "/lib64")
    files += [path for path in (f"{folder}/{name}" for name in NEEDED) if os.path.exists(path)]
    for path in dict.fromkeys(files):
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        shutil.copy(path, root + path)
    for name in ("dev", "etc", "proc", "sys", "tmp", "usr/bin", "usr/lib", "var"):
        os.makedirs(f"{root}/{name}", exist_ok=True)


def _run_all(host: Host, program: str, scratch: str, root: str) -> Iterator[tuple[str, ask.Answer]]:
    name = f"gpushim-doctor-{uuid.uuid4().hex[:12]}"
    chosen = {*host.named} or {"", "docker", "containerd", "podman"}
    if "" in chosen:
        yield "runc", _run_runtime(host, program, scratch, root, name)
    for engine in host.running("dockerd") if "docker" in chosen else ():
        yield "docker", _run_docker(host, engine, scratch, root, name)
    for engine in check_containerd.engines(host) if chosen & {"containerd", "kubernetes"} else ():
        yield "containerd", _run_containerd(host, engine, program, root, name)
    if "podman" in chosen and host.program("podman"):
        yield "podman", _run_podman(host, root, name)


def _run_runtime(host: Host, program: str, scratch: str, root: str, name: str) -> ask.Answer:
    """Call gpushim-runtime as an engine does, with a config.json that the low-level runtime wrote."""
    low = policy.low_level(host.settings["runtime"]["low-level"])
    made = ask.program([low, "spec", "--bundle", scratch])
    if made.code != 0:
        return made
    path = f"{scratch}/config.json"
    with open(path, encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    spec["root"] = {"path": root}
    spec["process"].update(terminal=False, args=COMMAND, env=["PATH=/usr/bin:/bin", REQUEST])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file)
    state = [program, "--root", f"{scratch}/state"]
    try:
        return ask.program([*state, "run", "--bundle", scratch, name], SECONDS)
    finally:
        ask.program([*state, "delete", "--force", name])


def _run_docker(host: Host, engine: Engine, scratch: str, root: str, name: str) -> ask.Answer:
    client = host.program("docker")
    if not client:
        return ask.Answer(None, "", programs.absent("docker", host.top))
    words = [client, f"--config={scratch}", f"--host=unix://{host_files.socket_path(dockerd.socket(engine))}"]
    archive = f"{scratch}/root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, ".")
    try:
        with open(archive, "rb") as feed:
            made = ask.program([*words, "import", "-", f"{name}:test"], SECONDS, feed)
        if made.code != 0:
            return made
        runtimes = check_docker.names(host, engine)
        gpus = [f"--runtime={runtimes[0]}", f"--env={REQUEST}"] if runtimes else ["--gpus=all"]
        run = ["run", "--rm", f"--name={name}", "--network=none", *gpus, f"{name}:test", *COMMAND]
        return ask.program([*words, *run], SECONDS)
    finally:
        ask.program([*words, "rm", "--force", name])
        ask.program([*words, "rmi", "--force", f"{name}:test"])


def _run_containerd(host: Host, engine: Engine, program: str, root: str, name: str) -> ask.Answer:
    client = host.program("ctr")
    if not client:
        return ask.Answer(None, "", programs.absent("ctr", host.top))
    words = [client, f"--address={host_files.socket_path(check_containerd.socket_of(host, engine))}"]
    run = ["run", "--rm", "--rootfs", f"--runc-binary={program}", f"--env={REQUEST}", root, name, *COMMAND]
    try:
        return ask.program([*words, *run], SECONDS)
    finally:
        ask.program([*words, "tasks", "rm", "--force", name])
        ask.program([*words, "containers", "rm", name])


def _run_podman(host: Host, root: str, name: str) -> ask.Answer:
    runtimes = check_podman.names(host)
    gpus = [f"--env={REQUEST}"] if runtimes else [f"--device={host.settings['cdi']['kind']}=all"]
    words = [host.program("podman"), *([f"--runtime={runtimes[0]}"] if runtimes else [])]
    run = ["run", "--rm", f"--name={name}", "--network=none", *gpus, "--rootfs", root, *COMMAND]
    try:
        return ask.program([*words, *run], SECONDS)
    finally:
        ask.program([*words, "rm", "--force", "--ignore", name])
