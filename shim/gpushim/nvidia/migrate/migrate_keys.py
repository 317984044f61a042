"""The keys of NVIDIA's config.toml: our setting for each, or a note on why there is none.

Source of the keys and their defaults: the toolkit's configuration, 1.20. Out of scope: what a file becomes
(migrate.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

FALSE, TRUE = ("0", "f", "F", "FALSE", "false", "False"), ("1", "t", "T", "TRUE", "true", "True")  # strconv.ParseBool
# Names of logrus, which their tools log with; an unknown one is info there.
LEVELS = {"trace": "debug", "debug": "debug", "warn": "warning", "warning": "warning"}
LEVELS.update(dict.fromkeys(("error", "fatal", "panic"), "error"))


@dataclass(frozen=True)
class Key:
    """A key of NVIDIA's.

    Attributes:
        kind: type of its values.
        setting: section and key of config.toml; () if gpushim has no such setting.
        become: translates a value; None if it asks for what gpushim does anyway.
        note: what gpushim does instead.
        harmless: values that ask for that, besides empty ones; None: all values.
    """

    kind: type[Any]
    setting: tuple[str, ...] = ()
    become: Callable[[Any], Any] = lambda value: value
    note: str = "gpushim does this itself, or has no such part"
    harmless: Optional[tuple[str, ...]] = None


def _split_words(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


_CLI, _RUNTIME = "nvidia-container-cli.", "nvidia-container-runtime."
_MODES, _HOOK = _RUNTIME + "modes.", "nvidia-container-runtime-hook."
_COMPAT = "the image's newer libcuda comes first where it runs on this driver and its GPUs"
# First the keys that people set, then the others.
KEYS = {
    "disable-require": Key(bool, ("requests", "disable-require")),
    "swarm-resource": Key(str, ("requests", "swarm-variables"), _split_words),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": Key(bool, ("requests", "accept-env-when-unprivileged")),
    "accept-nvidia-visible-devices-as-volume-mounts": Key(bool, ("requests", "accept-volume-mounts")),
    _CLI + "root": Key(str, ("driver", "root"), lambda value: value or "/"),
    _CLI + "load-kmods": Key(bool, ("driver", "load-kernel-modules")),
    _CLI + "no-cgroups": Key(bool, ("hook", "device-rules"), lambda value: not value),
    _RUNTIME + "log-level": Key(str, ("log", "level"), lambda value: LEVELS.get(value.lower(), "info")),
    _RUNTIME + "runtimes": Key(list, ("runtime", "low-level")),
    _MODES + "cdi.spec-dirs": Key(list, ("cdi", "spec-dirs")),
    _MODES + "cdi.default-kind": Key(str, ("cdi", "kind")),
    _MODES + "cdi.annotation-prefixes": Key(list, ("cdi", "annotation-prefixes")),
    _MODES + "csv.mount-spec-path": Key(str, ("driver", "csv-directory")),
    _MODES + "legacy.cuda-compat-mode": Key(
        str, ("requests", "cuda-compat"), lambda value: False if value == "disabled" else None, _COMPAT
    ),
    "features.disable-cuda-compat-lib-hook": Key(
        bool, ("requests", "cuda-compat"), lambda value: False if value else None, _COMPAT
    ),
    "features.ignore-imex-channel-requests": Key(bool, ("requests", "ignore-imex-channel-requests")),
    "supported-driver-capabilities": Key(
        str,
        note="a container may ask for any capability here, whatever this list withholds",
        harmless=("all", "compat32,compute,display,graphics,ngx,utility,video"),
    ),
    _RUNTIME + "mode": Key(
        str,
        note="there is one mode, which gives GPUs that no CDI spec names, too; NVIDIA_DRIVER_CAPABILITIES and "
        "NVIDIA_REQUIRE_* count (see the warnings)",
        harmless=("auto", "jit-cdi", "csv", "legacy"),
    ),
    "features.no-additional-gids-for-device-nodes": Key(
        bool, note="a container gets the group of a node that only this group may use", harmless=()
    ),
    _CLI + "ldcache": Key(
        str, note="the cache is /etc/ld.so.cache below [driver] root", harmless=("/etc/ld.so.cache",)
    ),
    _MODES + "csv.compat-container-root": Key(
        str, note="a newer libcuda is looked for in /usr/local/cuda/compat", harmless=("/usr/local/cuda/compat",)
    ),
    _MODES + "jit-cdi.nvcdi-feature-flags": Key(
        list, note="gpushim has its own way to find files, and no switches for it", harmless=()
    ),
    _MODES + "jit-cdi.nvcdi-disable-hooks": Key(
        list, note="gpushim has one hook, which is always needed", harmless=()
    ),
    _CLI + "environment": Key(list),
    **{_CLI + name: Key(str) for name in ("debug", "ldconfig", "path", "user")},
    **{name: Key(str) for name in (_RUNTIME + "debug", _HOOK + "path", "nvidia-ctk.path")},
    **{name: Key(bool) for name in (_CLI + "no-pivot", _HOOK + "skip-mode-detection")},
    "features.allow-cuda-compat-libs-from-container": Key(bool, note=_COMPAT),
    "features.allow-ldconfig-from-container": Key(bool, note="nothing of an image is executed"),
    "features.allow-unknown-oci-spec-fields": Key(bool, note="fields of config.json that are unknown stay"),
    "features.disable-imex-channel-creation": Key(bool, note="gpushim makes no IMEX channels"),
}
