"""One file for a bug report: the doctor's findings, and the facts that its readers will ask for.

Left out: engines' settings and environments, which hold secrets; and, from the rest, the host's name, users' names,
and text that looks like a password, a token or another program's variable.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from typing import TYPE_CHECKING, Any

import gpushim
from gpushim.cdi import specs
from gpushim.doctor import Finding, Host, check_cdi, checks, text
from gpushim.engines.processes import ask
from gpushim.ground import seen
from gpushim.ground.errors import GpushimError, visible
from gpushim.inventory import ensure
from gpushim.paths import host_files
from gpushim.paths.logfile import now

if TYPE_CHECKING:
    from collections.abc import Iterator

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LOG_LINES = 50
LOG_LIMIT = 64 << 10  # bytes of the log's end
GONE = "[left out]"
PROGRAMS = ("runc", "crun", "dockerd", "containerd", "podman", "crio", "nvidia-ctk", "kubelet")
_KEYS = (
    r"[\w.-]{0,40}(?:token|passw|secret|credential|authori[sz]ation|api[_-]?key|private[_-]?key|cookie)[\w.-]{0,40}"
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [^-]*-----.*?(-----END [^-]*-----|\Z)", re.DOTALL), GONE),
    (re.compile(r"://[^/\s\"'@]+@"), f"://{GONE}@"),
    (re.compile(r"\b(?:bearer|basic)\s+[\w.+/=~-]+", re.IGNORECASE), GONE),
    (
        re.compile(rf"({_KEYS}\\?[\"']?\s*[:=]\s*)(\\?[\"'])?(?(2)[^\"']*|[^\s\"',;]+)", re.IGNORECASE),
        rf"\g<1>\g<2>{GONE}",
    ),
    (re.compile(r"\b(?:eyJ[\w-]+\.[\w-]+\.[\w-]*|gh[opsur]_\w+|glpat-[\w-]+|xox\w-[\w-]+|AKIA\w{12,})"), GONE),
    # Variables: only the name, but for NVIDIA's, ours and CUDA's.
    (re.compile(r"\b(?!NVIDIA_|GPUSHIM_|CUDA_|PATH=)([A-Z][A-Z0-9_]{2,}=)[^\"',\n]+"), rf"\g<1>{GONE}"),
    (re.compile(r"(/home/|/run/user/)[^/\s\"']+"), rf"\g<1>{GONE}"),
)


def check(path: str) -> None:
    """Raise for a path at which `write` could write no report, before there is one."""
    with _open_directory(path) as file:
        os.close(os.open(file.name, NEW, 0o600, dir_fd=file.folder))
        os.unlink(file.name, dir_fd=file.folder)


def write(path: str, host: Host, findings: list[Finding]) -> None:
    """Write a report, which only its owner can read, as JSON if its path ends with .json, else as text.

    Raises:
        GpushimError: the file exists, or cannot be written, or another user could change what its path means.
    """
    content = rendered(host, findings, path.endswith(".json"))
    with _open_directory(path) as target:
        fd = os.open(target.name, NEW, 0o600, dir_fd=target.folder)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(content + "\n")


def rendered(host: Host, findings: list[Finding], as_json: bool) -> str:
    sections = gathered(host, findings)
    return json.dumps(sections, indent=2) if as_json else _text(sections)


@contextlib.contextmanager
def _open_directory(path: str) -> Iterator[host_files.HostFile]:
    try:
        with host_files.open_parent(os.path.abspath(path), output=True) as file:
            if file.link:
                raise FileExistsError
            yield file
    except FileExistsError:
        raise GpushimError(f"{path} is there already; name a file that is not, or - for stdout") from None
    except OSError as error:
        raise GpushimError(f"{path} cannot be written: {error.strerror}") from None


def gathered(host: Host, findings: list[Finding]) -> dict[str, Any]:
    snapshot, stale = ensure.last(host.config, host.state)
    documents = specs.load(check_cdi.directories(host))[0]
    sections = {
        "gpushim": gpushim.__version__,
        "written": now(),
        "verdict": checks.worst(findings),
        "findings": [finding.data() for finding in findings],
        "system": _system(host),
        "versions": _versions(host),
        "config.toml": _read(host.config).splitlines(),
        "snapshot": {"stale": stale, **snapshot},
        "cdi": {path: _describe(document) for path, _, document in documents},
        "engines": [{"name": e.name, "started": e.started, "uid": e.uid, "root": e.root} for e in host.engines],
        "log": _log(host.settings["log"]["file"]),
    }
    cleaned: dict[str, Any] = _clean_all(sections)
    return cleaned


def clean(words: str) -> str:
    """Remove secrets and names from a text."""
    for pattern, replacement in _RULES:
        words = pattern.sub(replacement, words)
    name = platform.node()
    for node_name in (name, name.partition(".")[0]):  # the longer one first
        if len(node_name) > 2 and node_name != "localhost":
            words = re.sub(rf"(?<![\w-]){re.escape(node_name)}(?![\w-])", "HOST", words)
    return words


def _clean_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {clean(key): _clean_all(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_clean_all(member) for member in value]
    return clean(value) if isinstance(value, str) else value


def _system(host: Host) -> dict[str, str]:
    release = dict(line.split("=", 1) for line in _read(f"{host.top}/etc/os-release").splitlines() if "=" in line)
    return {
        "distribution": release.get("PRETTY_NAME", "").strip('"'),
        "kernel": f"{platform.release()} {platform.version()} {platform.machine()}",
        "python": platform.python_version(),
        "driver": _read(f"{host.proc}/driver/nvidia/version").strip(),
        "module parameters": _read(f"{host.proc}/driver/nvidia/params").strip(),
        "user": str(os.geteuid()),
    }


def _versions(host: Host) -> dict[str, str]:
    paths = [path for path in map(host.program, PROGRAMS) if path]
    return {path: (ask.program([path, "--version"]).out.splitlines() or [""])[0][:200] for path in paths}


def _read(path: str) -> str:
    try:
        return text(path)
    except PermissionError:
        return seen.sentence([path])


def _describe(document: dict[str, Any]) -> dict[str, Any]:
    names = [device["name"] for device in document["devices"]]
    return {"kind": document["kind"], "cdiVersion": document["cdiVersion"], "devices": names}


def _log(path: str) -> list[str]:
    if not path or not os.path.isfile(path):
        return []
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_LIMIT))
            return file.read(LOG_LIMIT).decode("utf-8", "replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []


def _text(sections: dict[str, Any]) -> str:
    lines = []
    for name, section in sections.items():
        lines.append(f"== {name} ==")
        if name == "findings":
            for finding in section:
                lines.append(f"{finding['verdict']:8} {finding['check']}: {finding['evidence']}")
                lines += [f"         fix: {finding['fix']}"] if finding["fix"] else []
        elif isinstance(section, list):
            lines += [finding if isinstance(finding, str) else json.dumps(finding) for finding in section]
        else:
            lines += [section] if isinstance(section, str) else json.dumps(section, indent=1).split("\n")
        lines.append("")
    return "\n".join(visible(line, "\t") for line in lines)
