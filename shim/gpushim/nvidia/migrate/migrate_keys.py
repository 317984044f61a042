"""What each key of NVIDIA's config.toml means here: a setting of ours, or a sentence.

Source of the keys and their defaults: the toolkit's configuration, 1.20. A sentence begins with "not needed" where
the value asks for what happens here anyway, else with "left out".
Out of scope: values that fit no key, and what a whole file becomes (migrate.py).
"""

from __future__ import annotations

from typing import Any, Callable, Union

from gpushim.oci.request import MPS_PIPES

GIVEN_UP = "left out"
CAPABILITIES = {"compute", "compat32", "graphics", "utility", "video", "display", "ngx"}
FALSE, TRUE = ("0", "f", "F", "FALSE", "false", "False"), ("1", "t", "T", "TRUE", "true", "True")  # strconv.ParseBool
MPS_VARIABLE = f"{MPS_PIPES}="
# Names of logrus, which their tools log with.
LEVELS = {
    **dict.fromkeys(("trace", "debug"), "debug"),
    "info": "info",
    **dict.fromkeys(("warn", "warning"), "warning"),
    **dict.fromkeys(("error", "fatal", "panic"), "error"),
}

Setting = tuple[str, str, Any]  # section, key and value of config.toml
Answer = Union[Setting, str]  # or why there is no equivalent
Meaning = Union[str, tuple[str, str], Callable[[Any], Answer]]


def _swarm(value: str) -> Answer:
    return "requests", "swarm-variables", [name.strip() for name in value.split(",") if name.strip()]


def _capabilities(value: str) -> Answer:
    named = {name.strip() for name in value.split(",")}
    if "all" in named or named >= CAPABILITIES:
        return "not needed: a container may ask for any capability"
    return f"{GIVEN_UP}: a container may ask for any capability here, whatever this list withholds"


def _root(value: str) -> Answer:
    return "driver", "root", value or "/"


def _environment(value: list[str]) -> Answer:
    pipes = [text[len(MPS_VARIABLE) :] for text in value if text.startswith(MPS_VARIABLE)]
    if pipes:
        return "mps", "pipe-directory", pipes[-1].rstrip("/")
    return "not needed: no nvidia-container-cli runs that could read these variables"


def _no_cgroups(value: bool) -> Answer:
    return "hook", "device-rules", not value


def _level(value: str) -> Answer:
    if value.lower() not in LEVELS:
        return "log", "level", "info"  # as NVIDIA's tools do with an unknown level
    return "log", "level", LEVELS[value.lower()]


def _no_gids(value: bool) -> Answer:
    if value:
        return f"{GIVEN_UP}: a container gets the group of a node that only this group may use, as without the switch"
    return "not needed: it is off"


def _mode(value: str) -> Answer:
    known = {
        "auto": f"not needed: there is one mode, which takes variables, mounts and CDI names; {_COUNT}",
        "jit-cdi": f"not needed: gpushim-runtime works like this always; {_COUNT}",
        "cdi": f"{GIVEN_UP}: a GPU that no CDI spec names is refused there and given here, and {_COUNT}",
        "csv": "not needed: on Tegra the CSV files are read always",
        "legacy": "not needed: gpushim-runtime edits config.json instead of leaving all to a hook",
    }
    return known.get(value, f"{GIVEN_UP}: no such mode")


def _compat_mode(value: str) -> Answer:
    if value == "disabled":
        return "requests", "cuda-compat", False
    known = value in ("", "ldconfig", "hook", "mount")
    return f"{'not needed' if known else GIVEN_UP}: {_COMPAT}"


def _no_compat_hook(value: bool) -> Answer:
    return ("requests", "cuda-compat", False) if value else "not needed: it is off"


def _only(sentence: str, *values: str) -> Callable[[Any], Answer]:
    """Take values that ask for what happens here anyway, and give up others."""
    return lambda value: f"{'not needed' if not value or value in values else GIVEN_UP}: {sentence}"


def _feature(sentence: str) -> tuple[type[Any], Meaning]:
    return bool, lambda value: sentence if value else "not needed: it is off"


_COUNT = "NVIDIA_DRIVER_CAPABILITIES and NVIDIA_REQUIRE_* count (see the warnings)"
_LOG = "not needed: [log] file gets a line per GPU container"
_NO_CLI = "not needed: gpushim calls no nvidia-container-cli"
_COMPAT = "the image's newer libcuda comes first where it runs on this driver and its GPUs"
_FOUND = "not needed: gpushim finds its own programs"
KINDS = {bool: "true or false", str: "a string", list: "an array of strings"}
_CLI, _RUNTIME = "nvidia-container-cli.", "nvidia-container-runtime."
_MODES, _HOOK = _RUNTIME + "modes.", "nvidia-container-runtime-hook."
KEYS: dict[str, tuple[type[Any], Meaning]] = {
    "disable-require": (bool, ("requests", "disable-require")),
    "swarm-resource": (str, _swarm),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": (bool, ("requests", "accept-env-when-unprivileged")),
    "accept-nvidia-visible-devices-as-volume-mounts": (bool, ("requests", "accept-volume-mounts")),
    "supported-driver-capabilities": (str, _capabilities),
    _CLI + "root": (str, _root),
    _CLI + "path": (str, _NO_CLI),
    _CLI + "environment": (list, _environment),
    _CLI + "debug": (str, _LOG),
    _CLI + "ldcache": (str, _only("the cache is /etc/ld.so.cache below [driver] root", "/etc/ld.so.cache")),
    _CLI + "load-kmods": (bool, ("driver", "load-kernel-modules")),
    _CLI + "no-cgroups": (bool, _no_cgroups),
    _CLI + "no-pivot": (bool, "not needed: no program runs in the container's root directory"),
    _CLI + "user": (str, "not needed: NVML is never called while a container is created"),
    _CLI + "ldconfig": (str, "not needed: gpushim writes the container's ld.so.cache itself; no ldconfig runs"),
    _RUNTIME + "debug": (str, _LOG),
    _RUNTIME + "log-level": (str, _level),
    _RUNTIME + "runtimes": (list, ("runtime", "low-level")),
    _RUNTIME + "mode": (str, _mode),
    _MODES + "cdi.spec-dirs": (list, ("cdi", "spec-dirs")),
    _MODES + "cdi.default-kind": (str, ("cdi", "kind")),
    _MODES + "cdi.annotation-prefixes": (list, ("cdi", "annotation-prefixes")),
    _MODES + "jit-cdi.nvcdi-feature-flags": (
        list,
        _only("gpushim has its own way to find files, and no switches for it"),
    ),
    _MODES + "jit-cdi.nvcdi-disable-hooks": (list, _only("gpushim has one hook, which is always needed")),
    _MODES + "csv.mount-spec-path": (str, ("driver", "csv-directory")),
    _MODES + "csv.compat-container-root": (
        str,
        _only("a newer libcuda is looked for in /usr/local/cuda/compat", "/usr/local/cuda/compat"),
    ),
    _MODES + "legacy.cuda-compat-mode": (str, _compat_mode),
    _HOOK + "path": (str, _FOUND),
    _HOOK + "skip-mode-detection": (bool, "not needed: the hook has no modes"),
    "nvidia-ctk.path": (str, _FOUND),
    "features.allow-cuda-compat-libs-from-container": _feature(f"not needed: {_COMPAT}"),
    "features.allow-ldconfig-from-container": _feature(
        "not needed: gpushim writes the container's ld.so.cache itself, and executes nothing of an image"
    ),
    "features.allow-unknown-oci-spec-fields": _feature("not needed: fields of config.json that are unknown stay"),
    "features.disable-cuda-compat-lib-hook": (bool, _no_compat_hook),
    "features.disable-imex-channel-creation": _feature("not needed: gpushim makes no IMEX channels"),
    "features.ignore-imex-channel-requests": (bool, ("requests", "ignore-imex-channel-requests")),
    "features.no-additional-gids-for-device-nodes": (bool, _no_gids),
}
