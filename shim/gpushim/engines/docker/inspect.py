"""What an engine would write into a container's config.json, from what it says of the container or image.

`inspect` tells variables, mounts, capabilities and device requests, of which only what makes up a request is taken,
and Podman's command line CDI devices. What the engine adds comes behind that: the variables of --gpus, and those of
CDI devices that it injects itself. Its own config.json would tell that too, but is there only while a container runs.
Out of scope: what the request then gets (gpushim.explain.explain).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from gpushim.cdi import specs
from gpushim.engines.docker import dockerd
from gpushim.engines.docker.daemon_json import program_of
from gpushim.engines.processes import ask, programs, running
from gpushim.explain import explain
from gpushim.ground import bounds
from gpushim.ground.errors import FAILED, NOT_FOUND, GpushimError, quote
from gpushim.oci.device_list import DEVICES
from gpushim.oci.device_names import is_qualified

ENGINES = ("docker", "podman")
SECONDS = 40
# What dockerd's driver "nvidia" can do, in daemon/devices_nvidia_linux.go of moby.
GPU_DRIVER = ("gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display")
BY_CDI, BY_HOOK = "nvidia.cdi", "nvidia.runtime-hook"  # the two halves of "nvidia", named since Docker 29.2
UNSEEN = (
    "the dockerd that answers is not seen from here; root on its machine sees it. This goes by the PATH that systemd "
    f"gives a service, {dockerd.PATH}"
)
COMPOSE = "com.docker.compose.project"  # label of a container that Compose has made
VOID_SINCE = (27, 3)  # Docker version from which a request for 0 GPUs says void, until dockerd.CDI_HOOK_SINCE


@dataclass
class Found:
    """A container or image, as explain takes it.

    Attributes:
        spec: the parts of a config.json that a request is made of.
        origins: who set a variable, mount or annotation, by its name, or by NAME=VALUE.
        rootfs: absolute path of the rootfs on the host; "" if it is not known, None if the spec names it.
        notes: sentences about the way in which the engine brings GPUs, or does not.
        by_hook: the engine calls the hook, and another runtime than gpushim-runtime.
    """

    spec: dict[str, Any]
    origins: dict[str, str]
    rootfs: str | None = ""
    notes: list[str] = field(default_factory=list)
    by_hook: bool = False

    def add(self, entry: str, origin: str) -> None:
        """Add the variable NAME=VALUE behind all others, and who sets it."""
        self.spec["process"]["env"].append(entry)
        self.origins[entry] = origin


def inspect(name: str) -> Found:
    """Ask the engines that are installed for a container or an image of this name or id.

    Raises:
        GpushimError: there is no engine, none knows it, or its answer is not JSON.
    """
    clients = {engine: program for engine in ENGINES if (program := programs.find(engine))}
    if not clients:
        reason = " and ".join(map(programs.absent, ENGINES))
        raise GpushimError(f"no engine can be asked: {reason}; give a bundle or --env", NOT_FOUND)
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
    host = _part(answer, "HostConfig")
    image: Any = answer
    if kind == "container":
        of = str(answer.get("Image", ""))
        answers = _ask(program, "inspect", "--type", "image", of)[0]
        image = answers[0] if isinstance(answers, list) and answers else None
        name = str(answer.get("ImageName") or _part(answer, "Config").get("Image") or of)
    container = _described(engine, answer, image, f"image {quote(name)}")
    info = _ask(program, "info", "--format", "{{json .}}")[0]
    info = info if isinstance(info, dict) else {}
    version = dockerd.version_number(str(info.get("ServerVersion", "")))
    daemon = _dockerd(info)
    requests = [request for request in host.get("DeviceRequests") or () if isinstance(request, dict)]
    by_cdi = [_by_cdi(request, info, version, daemon) for request in requests]
    names, by_hook = sum(by_cdi, podmans(answer)), [request for request, names in zip(requests, by_cdi) if not names]
    if note := _runtime_note(engine, host, info, bool(names), bool(by_hook), daemon):
        container.notes, container.by_hook = [note], bool(by_hook)
    if not daemon and any(_by_path(request, version) for request in requests):
        container.notes.append(UNSEEN)
    for request in by_hook:
        _add_gpus(container, request, version)
    _add_injected(container, engine, names, info)
    if engine == "podman" and not names and COMPOSE in _part(_part(answer, "Config"), "Labels"):
        container.notes.append(
            "Podman drops what Compose reserves with driver: nvidia, and gives no GPU for it; write driver: cdi and "
            "device_ids: [nvidia.com/gpu=all]"
        )
    return container


def _described(engine: str, answer: dict[str, Any], image: Any, image_name: str) -> Found:
    """Describe a container, or an image alone, without what the engine adds; None: the image is gone."""
    config, host = _part(answer, "Config"), _part(answer, "HostConfig")
    env, annotations = _texts(config.get("Env")), _annotations(answer, host, config)
    entries = [entry for entry in answer.get("Mounts") or () if isinstance(entry, dict)]
    mounts = [(str(entry.get("Source", "")), str(entry.get("Destination", ""))) for entry in entries]
    origins = dict.fromkeys([*annotations, *(path for _, path in mounts)], f"container ({engine} run)")
    manifest = _annotations(image)  # Podman has those of the image's manifest among the container's
    origins.update({key: image_name for key, value in annotations.items() if manifest.get(key) == value})
    image_env = _texts(_part(image, "Config").get("Env"))
    values = dict(entry.partition("=")[::2] for entry in image_env)
    for entry in env:
        variable = entry.partition("=")[0]
        instead = f", instead of the image's {quote(values[variable])}" if variable in values else ""
        by = "container or its image, which is gone" if image is None else f"container ({engine} run --env){instead}"
        origins[variable] = image_name if entry in image_env else by
    return Found(explain.build_spec(env, _privileged(answer, host), annotations, mounts), origins, rootfs(answer))


def _annotations(*parts: Any) -> dict[str, str]:
    return {key: str(value) for part in parts for key, value in _part(part, "Annotations").items()}


def _privileged(answer: dict[str, Any], host: dict[str, Any]) -> bool:
    """Return whether CAP_SYS_ADMIN will be in the bounding set, and not in the container's own user namespace."""
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


def rootfs(answer: dict[str, Any]) -> str:
    """Return the rootfs of a container or image from `inspect`: where it is mounted, or its only layer; else "".

    Links and whiteouts work across layers, so one of several layers does not tell what is in the rootfs.
    """
    data = _part(_part(answer, "GraphDriver"), "Data")
    runs = _part(answer, "State").get("Running") is True
    path = data.get("MergedDir") if runs else None if data.get("LowerDir") else data.get("UpperDir")
    return path if isinstance(path, str) and path.startswith("/") else ""


def podmans(answer: dict[str, Any]) -> list[str]:
    """List the CDI devices of a container from `podman inspect`, which has them only in the CreateCommand."""
    words = _texts(_part(answer, "Config").get("CreateCommand"))
    image = str(answer.get("ImageName") or "")
    words = words[: words.index(image)] if image in words else words  # the rest is the container's own command
    devices = [after for word, after in zip(words, words[1:]) if word == "--device"]
    devices += [word.partition("=")[2] for word in words if word.startswith("--device=")]
    return [name for name in dict.fromkeys(devices) if is_qualified(name)][: bounds.DEVICES]


def _dockerd(info: dict[str, Any]) -> running.Engine | None:
    """Find the dockerd that a client has asked; None if it is not seen here, as by an ordinary user."""
    for engine in running.look()[0]:
        if engine.name == dockerd.PROGRAM and info.get("ID"):
            with contextlib.suppress(OSError, ValueError):
                if dockerd.info(engine, seconds=ask.SECONDS).get("ID") == info["ID"]:
                    return engine
    return None


def _ids(request: dict[str, Any]) -> list[str]:
    """List the GPUs of a device request, as dockerd counts them."""
    count = request.get("Count") or 0
    return _texts(request.get("DeviceIDs")) or (["all"] if count < 0 else [*map(str, range(min(count, 4096)))])


def _by_path(request: dict[str, Any], version: tuple[int, ...]) -> bool:
    """Return whether the programs on dockerd's PATH decide who brings the GPUs of a request."""
    return (request.get("Driver") or "") in ("", "nvidia") and version >= dockerd.CDI_HOOK_SINCE


def _by_cdi(
    request: dict[str, Any], info: dict[str, Any], version: tuple[int, ...], daemon: running.Engine | None
) -> list[str]:
    """List the CDI devices that dockerd injects for a request; none if it goes by the hook, or is refused."""
    driver, ids = request.get("Driver") or "", _ids(request)
    if driver == "cdi":
        return ids
    names = [device if "=" in device else f"nvidia.com/gpu={device}" for device in ids]
    if driver == BY_CDI:
        return names
    if not _by_path(request, version) or not dockerd.find_program(daemon, dockerd.CDI_HOOK):
        return []
    try:  # for devices without a spec the hook is called, if there is one
        specs.find([name for name in names if name not in _discovered(info)], _texts(info.get("CDISpecDirs")))
    except GpushimError:
        return [] if dockerd.find_program(daemon, dockerd.RUNTIME_HOOK) else names
    return names


def _discovered(info: dict[str, Any]) -> set[str]:
    """List the CDI devices that dockerd says that it knows; older ones do not tell."""
    devices = info.get("DiscoveredDevices")
    return (
        {str(device.get("ID")) for device in devices if isinstance(device, dict)}
        if isinstance(devices, list)
        else set()
    )


def _add_gpus(container: Found, request: dict[str, Any], version: tuple[int, ...]) -> None:
    """Add what dockerd makes of a device request, as GPU_DRIVER's source says: variables behind all others."""
    driver = request.get("Driver") or ""
    lists = [names for names in request.get("Capabilities") or () if {*names} <= {*GPU_DRIVER}]
    drivers = ("", "nvidia", BY_HOOK, BY_CDI) if version >= dockerd.CDI_HOOK_SINCE else ("", "nvidia")
    if driver not in drivers or not (lists or driver):
        container.notes.append(f"Docker refuses --gpus with driver {quote(driver)} and these capabilities")
        return
    value = ",".join(_ids(request))
    if not value and _texts(request.get("DeviceIDs")):
        container.add(f"{DEVICES}=", "docker run --gpus")
        container.notes.append("the device request has an empty id, of which Docker makes no GPU: name one, or all")
        return
    if not value and VOID_SINCE <= version < dockerd.CDI_HOOK_SINCE:
        value = "void"
    elif not value:
        container.notes.append(
            "docker run --gpus 0 sets nothing in this Docker, and so does a reservation of Compose without count and "
            "device_ids: the variables of image and container apply"
        )
        return
    words = [name for name in (lists or [[]])[0] if name not in ("gpu", "nvidia")]
    for name, text in ((DEVICES, value), (explain.CAPABILITIES, ",".join(words))):
        if text:
            container.add(f"{name}={text}", "docker run --gpus")


def _add_injected(container: Found, engine: str, names: list[str], info: dict[str, Any]) -> None:
    """Add the variables of CDI devices that an engine injects itself, by specs where it says, or the usual."""
    for name in names:
        try:
            ((path, document, device),) = specs.find([name], _texts(info.get("CDISpecDirs")) or specs.DIRECTORIES)
        except GpushimError as error:
            but = ", by a spec that is not seen here" if name in _discovered(info) else f", and will refuse: {error}"
            container.notes.append(f"{engine} itself injects the CDI device {quote(name)}{but}")
            continue
        container.notes.append(f"{engine} itself injects the CDI device {quote(name)}, as {path} says")
        for part in (document, device):
            for entry in (part.get("containerEdits") or {}).get("env") or ():
                container.add(entry, f"CDI device {name} of {path}")


def _runtime_note(
    engine: str,
    host: dict[str, Any],
    info: dict[str, Any],
    by_engine: bool,
    by_hook: bool,
    daemon: running.Engine | None,
) -> str:
    """Return the note that gpushim-runtime will not be called, and who brings the GPUs then; "" if it will be."""
    runtimes = _part(info, "Runtimes")
    name = host.get("Runtime") or host.get("OCIRuntime") or info.get("DefaultRuntime")
    own_runtimes = dockerd.ours(info, daemon)
    if name not in runtimes or name in own_runtimes:
        return ""
    runs = f"{engine} runs it with {quote(str(program_of(_part(runtimes, name)) or name))}"
    if by_hook:
        return f"{runs}: the hook that --gpus brings does what stands here"
    if not _part(runtimes, name).get("path") and not daemon:
        return f"{engine} does not show which program its runtime {quote(str(name))} is; root can see it"
    if by_engine:
        return f"{runs}: it gets those devices, and nothing by gpushim"
    option = f"--runtime={own_runtimes[0]}" if own_runtimes else f"a runtime that `gpushim configure {engine}` adds"
    return (
        f"{runs}, which is not gpushim-runtime: it gets NO GPU; what stands here is what it would get with {option}"
    )


def _part(parent: Any, key: str) -> dict[str, Any]:
    member = parent.get(key) if isinstance(parent, dict) else None
    return member if isinstance(member, dict) else {}


def _texts(values: Any) -> list[str]:
    return [text for text in values if isinstance(text, str)] if isinstance(values, list) else []
