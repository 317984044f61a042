"""One file for a bug report: what the doctor found, and what its readers will ask for.

Left out: engines' settings and environments, which hold secrets; and, from the rest, the host's name, users' names,
and what looks like a password, a token or another program's variable. Out of scope: sending it.
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
from gpushim.paths import places
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
    # Variables: of others than NVIDIA's, ours and CUDA's only the name.
    (re.compile(r"\b(?!NVIDIA_|GPUSHIM_|CUDA_|PATH=)([A-Z][A-Z0-9_]{2,}=)[^\"',\n]+"), rf"\g<1>{GONE}"),
    (re.compile(r"(/home/|/run/user/)[^/\s\"']+"), rf"\g<1>{GONE}"),
)


def check(path: str) -> None:
    """Refuse a path at which `write` could write no report, before there is one."""
    with _new(path) as place:
        os.close(os.open(place.name, NEW, 0o600, dir_fd=place.folder))
        os.unlink(place.name, dir_fd=place.folder)


def write(path: str, host: Host, found: list[Finding]) -> None:
    """Write a report, which only its owner can read.

    Args:
        path: of the new file; a report is JSON if it ends with .json, else text.
        host: that was looked at.
        found: by the checks.

    Raises:
        GpushimError: the file is there, or cannot be written, or somebody else could change what its path means.
    """
    shown = rendered(host, found, path.endswith(".json"))
    with _new(path) as place:
        fd = os.open(place.name, NEW, 0o600, dir_fd=place.folder)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(shown + "\n")


def rendered(host: Host, found: list[Finding], as_json: bool) -> str:
    """Return a report, as JSON or as text."""
    sections = gathered(host, found)
    return json.dumps(sections, indent=2) if as_json else _text(sections)


@contextlib.contextmanager
def _new(path: str) -> Iterator[places.Place]:
    """Open the directory of a file that is to be made."""
    try:
        with places.place(os.path.abspath(path), output=True) as place:
            if place.link:
                raise FileExistsError
            yield place
    except FileExistsError:
        raise GpushimError(f"{path} is there already; name a file that is not, or - for stdout") from None
    except OSError as error:
        raise GpushimError(f"{path} cannot be written: {error.strerror}") from None


def gathered(host: Host, found: list[Finding]) -> dict[str, Any]:
    """Gather a report's sections, without secrets."""
    snapshot, stale = ensure.last(host.config, host.state)
    documents = specs.load(check_cdi.directories(host))[0]
    sections = {
        "gpushim": gpushim.__version__,
        "written": now(),
        "verdict": checks.worst(found),
        "findings": [finding.data() for finding in found],
        "system": _system(host),
        "versions": _versions(host),
        "config.toml": _read(host.config).splitlines(),
        "snapshot": {"stale": stale, **snapshot},
        "cdi": {path: _described(document) for path, _, document in documents},
        "engines": [{"name": e.name, "started": e.started, "uid": e.uid, "root": e.root} for e in host.engines],
        "log": _log(host.settings["log"]["file"]),
    }
    cleaned: dict[str, Any] = _cleaned(sections)
    return cleaned


def clean(words: str) -> str:
    """Remove secrets and names from a text."""
    for pattern, instead in _RULES:
        words = pattern.sub(instead, words)
    name = platform.node()
    for each in (name, name.partition(".")[0]):  # the longer one first
        if len(each) > 2 and each != "localhost":
            words = re.sub(rf"(?<![\w-]){re.escape(each)}(?![\w-])", "HOST", words)
    return words


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {clean(key): _cleaned(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_cleaned(member) for member in value]
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


def _described(document: dict[str, Any]) -> dict[str, Any]:
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
            for each in section:
                lines.append(f"{each['verdict']:8} {each['check']}: {each['evidence']}")
                lines += [f"         fix: {each['fix']}"] if each["fix"] else []
        elif isinstance(section, list):
            lines += [each if isinstance(each, str) else json.dumps(each) for each in section]
        else:
            lines += [section] if isinstance(section, str) else json.dumps(section, indent=1).split("\n")
        lines.append("")
    return "\n".join(visible(line, "\t") for line in lines)
