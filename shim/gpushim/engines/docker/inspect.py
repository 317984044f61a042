"""What an engine would write into a container's config.json, from what it says of the container or image.

`docker inspect` tells variables, mounts, capabilities and device requests. Only what makes up a request is taken.
Out of scope: what the request then gets (gpushim.explain.explain).
"""

from __future__ import annotations

import json
from typing import Any

from gpushim.cdi import specs
from gpushim.engines.docker import dockerd, injected, on_path
from gpushim.engines.docker.injected import Found
from gpushim.engines.processes import ask, programs, running
from gpushim.explain import explain
from gpushim.ground.errors import FAILED, NOT_FOUND, GpushimError, quote
from gpushim.oci.request import DEVICES

ENGINES = ("docker", "podman")
SECONDS = 40
# What dockerd's driver "nvidia" can do, in daemon/devices_nvidia_linux.go of moby.
GPU_DRIVER = ("gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display")
BY_CDI, BY_HOOK = "nvidia.cdi", "nvidia.runtime-hook"  # the two halves of "nvidia", named since Docker 29.2
VOID_SINCE = (27, 3)  # Docker version from which a request for 0 GPUs says void, until on_path.CDI_SINCE


def inspect(name: str) -> Found:
    """Ask the engines that are installed for a container or an image of this name or id.

    Raises:
        GpushimError: there is no engine, none knows it, or its answer is no JSON.
    """
    clients = {engine: program for engine in ENGINES if (program := programs.find(engine))}
    if not clients:
        why = " and ".join(map(programs.absent, ENGINES))
        raise GpushimError(f"no engine can be asked: {why}; give a bundle or --env", NOT_FOUND)
    reasons = []
    for engine, program in clients.items():
        for kind in ("container", "image"):
            answer, reason = _ask(program, "inspect", "--type", kind, name)
            if isinstance(answer, list) and answer and isinstance(answer[0], dict):
                return _read(engine, program, kind, name, answer[0])
            reasons.append(f"{engine}: {reason}")
    raise GpushimError(f"no container or image {quote(name)} ({'; '.join(dict.fromkeys(reasons))})", FAILED)


def _ask(program: str, *args: str) -> tuple[Any, str]:
    """Run a client; returns its JSON, or None and the last line that it said."""
    answer = ask.program([program, *args], SECONDS, whole=True, more={"PATH": programs.path()})
    if answer.code != 0:
        return None, answer.last
    try:
        return json.loads(answer.out), ""
    except ValueError:
        return None, "its answer is not JSON"


def _read(engine: str, program: str, kind: str, name: str, answer: dict[str, Any]) -> Found:
    info = _ask(program, "info", "--format", "{{json .}}")[0]
    info = info if isinstance(info, dict) else {}
    config, host = _part(answer, "Config"), _part(answer, "HostConfig")
    env = _texts(config.get("Env"))
    if kind == "image":
        theirs = _annotations(answer)  # of its manifest; Docker knows none
        found = Found(explain.described(env, False, theirs, []))
        found.origins = dict.fromkeys([*map(injected.variable, env), *theirs], f"image {quote(name)}")
    else:
        found = _container(engine, program, answer, env)
    found.rootfs = injected.rootfs(answer)
    requests = [request for request in host.get("DeviceRequests") or () if isinstance(request, dict)]
    by_engine, rest, earlier = injected.podmans(answer), [], dict(found.origins)
    for request in requests:
        names = _by_cdi(request, info)
        by_engine += names
        rest += [] if names else [request]
    _note_runtime(found, engine, host, info, bool(by_engine), bool(rest))
    for request in rest:
        _add_gpus(found, request, on_path.number(str(info.get("ServerVersion", ""))))
    injected.add(found, engine, by_engine, _texts(info.get("CDISpecDirs")))
    _tell_which_counts(found, env, earlier)
    return found


def _tell_which_counts(found: Found, env: list[str], earlier: dict[str, str]) -> None:
    """Say where a variable that the engine adds comes behind one of the container or image, and so counts.

    Args:
        found: with all variables.
        env: the container's variables without the engine's, each once.
        earlier: who set them.
    """
    last = {injected.variable(entry): entry for entry in found.spec["process"]["env"]}
    for entry in env:
        name, _, value = entry.partition("=")
        if name in earlier and last[name] != entry:
            instead = f", which comes last and so counts instead of {quote(value)} by {earlier[name]}"
            found.origins[entry] = earlier[name]
            found.origins[last[name]] = found.origins[name] = found.origins[name] + instead


def _container(engine: str, program: str, answer: dict[str, Any], env: list[str]) -> Found:
    config, host = _part(answer, "Config"), _part(answer, "HostConfig")
    annotations = _annotations(host, config)  # Podman's has those of the image's manifest among them
    entries = [entry for entry in answer.get("Mounts") or () if isinstance(entry, dict)]
    mounts = [(str(entry.get("Source", "")), str(entry.get("Destination", ""))) for entry in entries]
    privileged = _privileged(answer, host)
    spec = explain.described(env, privileged, annotations, mounts)
    found = Found(spec, dict.fromkeys([*annotations, *(path for _, path in mounts)], f"container ({engine} run)"))
    image = str(answer.get("Image", ""))
    answers, _ = _ask(program, "inspect", "--type", "image", image)
    theirs = _texts(_part(answers[0], "Config").get("Env")) if isinstance(answers, list) and answers else None
    manifest = _annotations(answers[0]) if isinstance(answers, list) and answers else {}
    shown = quote(str(answer.get("ImageName") or config.get("Image") or image))
    found.origins.update((key, f"image {shown}") for key in annotations if annotations[key] == manifest.get(key))
    values = dict(entry.partition("=")[::2] for entry in theirs or ())
    for entry in env:
        name = injected.variable(entry)
        if theirs is None:
            found.origins[name] = "container or its image, which is gone"
        elif entry in theirs:
            found.origins[name] = f"image {shown}"
        else:
            instead = f", instead of the image's {quote(values[name])}" if name in values else ""
            found.origins[name] = f"container ({engine} run --env){instead}"
    return found


def _annotations(*parts: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for part in parts for key, value in _part(part, "Annotations").items()}


def _privileged(answer: dict[str, Any], host: dict[str, Any]) -> bool:
    """Say whether CAP_SYS_ADMIN will be in the bounding set, and not in a user namespace of the container's own."""
    if _part(host, "IDMappings").get("UidMap"):  # Podman's; Docker refuses to have both
        return False
    bounding = answer.get("BoundingCaps")  # Podman's answer for a container
    if isinstance(bounding, list):
        return "CAP_SYS_ADMIN" in bounding
    added, dropped = (
        {name.upper().removeprefix("CAP_") for name in _texts(host.get(key))} for key in ("CapAdd", "CapDrop")
    )
    if host.get("Privileged") is True:
        return True
    return "SYS_ADMIN" in added or ("ALL" in added and "SYS_ADMIN" not in dropped)


def _dockerd() -> running.Engine | None:
    return next((each for each in running.look()[0] if each.name == "dockerd"), None)


def _ids(request: dict[str, Any]) -> list[str]:
    """List the GPUs of a device request, as dockerd counts them."""
    count = request.get("Count") or 0
    return _texts(request.get("DeviceIDs")) or (["all"] if count < 0 else [*map(str, range(min(count, 4096)))])


def _by_cdi(request: dict[str, Any], info: dict[str, Any]) -> list[str]:
    """List the CDI devices that dockerd injects for a request; none if it goes by the hook, or is refused."""
    driver, ids = request.get("Driver") or "", _ids(request)
    if driver == "cdi":
        return ids
    names = [each if "=" in each else f"nvidia.com/gpu={each}" for each in ids]
    if driver == BY_CDI:
        return names
    since = on_path.number(str(info.get("ServerVersion", ""))) >= on_path.CDI_SINCE
    if (
        driver not in ("", "nvidia")
        or not since
        or not (daemon := _dockerd())
        or not on_path.found(daemon, on_path.CDI_HOOK)
    ):
        return []
    try:  # for devices without a spec the hook is called, if there is one
        specs.find(names, _texts(info.get("CDISpecDirs")))
    except GpushimError:
        return [] if on_path.found(daemon, on_path.HOOK) else names
    return names


def _add_gpus(found: Found, request: dict[str, Any], version: tuple[int, ...]) -> None:
    """Add what dockerd makes of a device request, as GPU_DRIVER's source says: variables behind all others."""
    driver = request.get("Driver") or ""
    lists = [names for names in request.get("Capabilities") or () if {*names} <= {*GPU_DRIVER}]
    known = ("", "nvidia", BY_HOOK, BY_CDI) if version >= on_path.CDI_SINCE else ("", "nvidia")
    if driver not in known or not (lists or driver):
        found.notes.append(f"Docker refuses --gpus with driver {quote(driver)} and these capabilities")
        return
    value = ",".join(_ids(request))
    if not value and VOID_SINCE <= version < on_path.CDI_SINCE:
        value = "void"
    elif not value:
        found.notes.append("docker run --gpus 0 sets nothing in this Docker: what image and container say counts")
        return
    words = [name for name in (lists or [[]])[0] if name not in ("gpu", "nvidia")]
    for name, text in ((DEVICES, value), (explain.CAPABILITIES, ",".join(words))):
        if text:
            found.add(f"{name}={text}", "docker run --gpus")


def _note_runtime(
    found: Found, engine: str, host: dict[str, Any], info: dict[str, Any], by_engine: bool, by_hook: bool
) -> None:
    """Say so if gpushim-runtime will not be called.

    Args:
        found: gets the note.
        engine: name of the client.
        host: HostConfig of the container.
        info: what the engine says of itself.
        by_engine: whether the engine injects CDI devices itself.
        by_hook: whether --gpus goes by the hook.
    """
    runtimes = _part(info, "Runtimes")
    name = host.get("Runtime") or host.get("OCIRuntime") or info.get("DefaultRuntime")
    if name not in runtimes:
        return
    daemon = _dockerd() if engine == "docker" else None
    ours = dockerd.ours(info, daemon)
    path = dockerd.program_of(_part(runtimes, name)) or name
    if name in ours:
        return
    if by_hook:
        found.by_hook = True
        found.notes.append(f"{engine} runs it with {quote(path)}: the hook that --gpus brings does what stands here")
        return
    if not _part(runtimes, name).get("path") and not daemon:
        found.notes.append(f"{engine} does not tell which program its runtime {quote(str(name))} is; root can see it")
        return
    if by_engine:
        found.notes.append(f"{engine} runs it with {quote(str(path))}: it gets those devices, and nothing by gpushim")
        return
    how = f"--runtime={ours[0]}" if ours else f"a runtime that `gpushim configure {engine}` adds"
    found.notes.append(
        f"{engine} runs it with {quote(str(path))}, which is not gpushim-runtime: it gets NO GPU; what stands here "
        f"is what it would get with {how}"
    )


def _part(parent: Any, key: str) -> dict[str, Any]:
    found = parent.get(key) if isinstance(parent, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(found: Any) -> list[str]:
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
