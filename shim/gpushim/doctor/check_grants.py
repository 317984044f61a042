"""Checks of the policy: the devices that an image gets by itself, by the table of authorization, and device rules."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.doctor import Finding, Host, ok, warning
from gpushim.ground.errors import quote
from gpushim.oci.authorization import EXTRA_GRANTS, OF_AN_IMAGE, TABLE, unmet_condition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Policy

# Devices that an image can name by itself.
DEVICES = {"gpu": "this host's GPUs", "own-cdi": "CDI devices of its kind", "foreign-cdi": "CDI devices of {}"}


def images(host: Host) -> Iterator[Finding]:
    """Check which devices an image alone can get."""
    by: dict[str, list[str]] = {}
    for text, sources in reach(host.settings):
        by.setdefault(" or ".join(sources), []).append(text)
    clauses = [f"by {sources} {', '.join(texts)}" for sources, texts in by.items()]
    profile = host.settings["requests"]["profile"]
    changed = _overridden_switches(host.settings, profile)
    label = f"{profile}, but for {', '.join(changed)}" if changed else profile
    evidence = f"profile {label}: of itself an image can get {'; '.join(clauses) or 'nothing'}"
    # CDI devices ask for more.
    devices = any(not unmet_condition("gpu", source, lambda: False, host.settings) for source in OF_AN_IMAGE)
    if profile != "default" and devices:
        yield warning(evidence, f"remove what {shlex.quote(host.config)} sets otherwise")
    elif devices and unmet_condition("gpu", "variable", lambda: False, host.settings):
        yield warning(
            f"{evidence}; accept-env-when-unprivileged = false alone closes half: Podman's images have annotations",
            f"set accept-annotations-when-unprivileged = false under [requests] in {shlex.quote(host.config)}",
        )
    else:
        yield ok(evidence)


def device_rules(host: Host) -> Iterator[Finding]:
    """Check that containers which get their GPUs from the hook alone may open them."""
    if host.settings["hook"]["device-rules"]:
        yield ok("device-rules is true: what gpushim-hook alone gives can be opened")
    else:
        yield warning(
            "device-rules is false under [hook]: where device rules are in force, containers with GPUs from "
            "gpushim-hook alone (docker run --gpus, hooks.d) cannot open them: NVML says Unknown Error",
            f"set device-rules = true under [hook] in {shlex.quote(host.config)}, unless all engines are rootless",
        )


def reach(settings: Policy) -> list[tuple[str, list[str]]]:
    """List the texts of grants that an image alone can get in an unprivileged container, each with its sources."""
    grants = []
    for grant in TABLE:
        kinds = settings["cdi"]["foreign-kinds"] if grant == "foreign-cdi" else [""]
        for kind in kinds:
            sources = [
                source for source in OF_AN_IMAGE if not unmet_condition(grant, source, lambda: False, settings, kind)
            ]
            if sources:
                text = {**DEVICES, **EXTRA_GRANTS}[grant]
                grants.append((text.format("any kind" if kind == "*" else quote(kind)), sources))
    return grants


def _overridden_switches(settings: Any, profile: str) -> list[str]:
    switches = policy.PROFILES["multi-tenant"]
    defaults: Any = policy.defaults()
    expected = {section: {**defaults[section], **policy.PROFILES[profile].get(section, {})} for section in switches}
    return [
        f"[{section}] {key}"
        for section, keys in switches.items()
        for key in keys
        if settings[section][key] != expected[section][key]
    ]
