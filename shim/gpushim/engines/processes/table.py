"""The engines that gpushim knows: what others than an engine's own modules must know of it to find it.

A new engine is a row here, engines/NAME.py (or a package of that name) with `plan` and `verify`, and
doctor/check_NAME.py with CHECKS; `gpushim configure`, `doctor` and `ps` go by this table.
Out of scope: what an engine's settings say.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What is true of an engine wherever it runs.

    Attributes:
        title: its name, for sentences.
        process: name of its daemon's process; "" for an engine without a daemon.
        unit: systemd unit of that, unless the process is in another one.
        options: of its command line that name its settings.
        variables: of its environment that do; nothing else of an environment is kept, as it holds secrets.
        handlers: whether it needs the settings of a runtime as long as a container of it is there.
        hooks: whether it calls what the files of a hooks directory name (oci-hooks(5)).
        states: patterns of the directories where runc and crun keep the state of its containers.
        users_states: the same for a rootless one, below the user's runtime directory.
        annotations: beginnings of KEY=VALUE by which a container is known as this engine's, with what `ps` then says.
        cdi: the versions of it, and the CDI version that releases from each one on read at least.
    """

    title: str
    process: str = ""
    unit: str = ""
    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    handlers: bool = False
    hooks: bool = False
    states: tuple[str, ...] = ()
    users_states: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi: tuple[tuple[tuple[int, int], str], ...] = ()


ENGINES = {
    "docker": Row(
        title="Docker",
        process="dockerd",
        unit="docker.service",
        options=("--config-file",),
        states=("/run/docker/runtime-*/*",),
        users_states=("docker/runtime-*/*",),
        cdi=(((25, 0), "0.6.0"), ((27, 0), "0.7.0"), ((28, 0), "0.8.0"), ((28, 3), "1.0.0")),
    ),
    "containerd": Row(
        title="containerd",
        process="containerd",
        unit="containerd.service",
        options=("--config", "-config", "-c"),
        states=("/run/containerd/runc/*",),
        annotations=(("io.kubernetes.cri.", "containerd (CRI)"), ("nerdctl/", "nerdctl")),
        cdi=(((1, 7), "0.5.0"), ((2, 0), "0.8.0"), ((2, 1), "1.0.0")),
    ),
    "crio": Row(
        title="CRI-O",
        process="crio",
        unit="crio.service",
        options=("--config", "-config", "-c"),
        variables=("CONTAINER_CONFIG", "CONTAINER_CONFIG_DIR", "CONTAINER_ROOT", "CONTAINERS_STORAGE_CONF"),
        handlers=True,
        hooks=True,
        annotations=(("io.container.manager=cri-o", "cri-o"), ("io.kubernetes.cri-o.", "cri-o")),
    ),
    "podman": Row(
        title="Podman",
        hooks=True,
        annotations=(("io.container.manager=libpod", "podman"), ("io.podman.", "podman")),
        cdi=(((4, 1), "0.5.0"), ((4, 6), "0.6.0"), ((5, 1), "0.7.0"), ((5, 3), "0.8.0"), ((5, 6), "1.0.0")),
    ),
}


def of(process: str) -> Row:
    """Return the row of the engine whose daemon has a process of this name; an empty one if none has."""
    return next((row for row in ENGINES.values() if process and row.process == process), Row(process))
