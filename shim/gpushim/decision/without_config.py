"""What is decided without a snapshot, as while the configuration cannot be read: who could be asking for a GPU.

Then nothing tells which variables, annotations and mounts count. A container with one of the launcher's words is
refused, for it could start without its GPU; others are not affected. And the refusal's line in the GPU log has to
find that log. Not on the create path: only trouble pays for these imports. Out of scope: what is wrong (policy.py),
other reports of a refusal (create.py), the line itself (decide.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.ground import fastjson, system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.oci import request
from gpushim.paths import trust
from gpushim.paths.logfile import append, now

if TYPE_CHECKING:
    from gpushim.ground.model import Policy

# The launcher's, but for gpushim-hook: a hooks.d directory names that to containers that ask for nothing, too.
WORDS = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "nvidia-container-devices", "cdi.k8s.io")


def may_ask(spec: dict[str, Any], config: str, state: str) -> bool:
    """Return whether a container may have a request: by the configuration, or by a word if that cannot be read."""
    try:
        settings = policy.load(config)  # then it is the host that cannot be surveyed
    except GpushimError:
        text = fastjson.dumps(spec)
        return any(word in text for word in (*WORDS, *_configured_words(state)))
    try:
        return request.read(spec, settings) is not None
    except GpushimError:  # the reason for the missing snapshot must be reported
        return True


def _configured_words(state: str) -> list[str]:
    """Return the words that the last configuration added to the launcher's, as JSON has them."""
    try:
        last = _last_policy(state)
        words = [*last["requests"]["swarm-variables"], *last["cdi"]["annotation-prefixes"]]
        return [fastjson.dumps(word)[1:-1] for word in words]
    except (KeyError, TypeError):
        return []


def _last_policy(state: str) -> Policy:
    """Return the policy of the last snapshot.

    Raises:
        KeyError: there is none that can be trusted.
    """
    policy_section: Policy = (ensure.own(f"{state}/{ensure.SNAPSHOT}") if trust.ours(state) else {})["policy"]
    return policy_section


def record(line: dict[str, Any]) -> None:
    """Write a refusal's line into the GPU log ([log] file), with the time added."""
    try:
        append(_log(), fastjson.dumps({"time": now(), **line}))
    except Exception:  # noqa: BLE001, S110 - the refusal itself must reach the engine
        pass


def _log() -> str:
    """Return the log's path in the configuration or, if that is wrong, in the last one.

    Without either it is the default, for the system's configuration alone.
    """
    config = system.config_path()
    default = config == system.CONFIG_FILE
    try:
        if default or os.path.exists(config):
            return str(policy.load(config)["log"]["file"])
    except GpushimError:
        pass
    try:
        return str(_last_policy(system.state_dir())["log"]["file"])
    except (GpushimError, KeyError, TypeError):
        return str(policy.defaults()["log"]["file"]) if default else ""
