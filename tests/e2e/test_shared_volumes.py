"""Nothing of the driver reaches the host through a volume that the user shares with it, whatever the image links."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Optional

import pytest

from e2e import views
from e2e.hostile import LIBS, WAYS
from e2e.hostile_places import Place
from e2e.shared_volumes import CONFINED, INSIDE, LINKS, PLACES, ROOTS, VOLUMES, Shared, kept, shared
from e2e.shared_volumes import host as host
from e2e.shared_volumes import place as place
from e2e.shared_volumes import shared_by as shared_by
from e2e.witness import RUNC
from fakehost import Host

ALWAYS = {"destination": "/etc/always", "source": "/etc/hostname", "type": "bind", "options": ["bind", "ro"]}


pytestmark = pytest.mark.parametrize("shared_by", PLACES, ids=views.name_of, indirect=True, scope="module")


@pytest.mark.parametrize("way", [*WAYS, "CDI"])
@pytest.mark.parametrize("propagation", ROOTS)
def test_a_volume_of_any_propagation(host: Shared, gpu_host: Host, propagation: Optional[str], way: str) -> None:
    """All links of an image at once."""
    host.image(LINKS["all"])
    for option in VOLUMES:
        ran = kept(host.run(gpu_host, host.volume(option), propagation=propagation, way=way), gpu_host)
        assert ran or propagation not in CONFINED or way != "shim", option  # a hook mounts on no volume at all


@pytest.mark.parametrize("way", [*WAYS, "CDI"])
@pytest.mark.parametrize("option", [None, "rshared"])
@pytest.mark.parametrize("links", LINKS)
def test_any_link(host: Shared, gpu_host: Host, links: str, option: Optional[str], way: str) -> None:
    host.image(LINKS[links])
    ran = kept(host.run(gpu_host, host.volume(option), propagation="shared", way=way), gpu_host)
    # What the hook lends of a service is left out where it has no place.
    assert ran == (links in ("nothing", "run", "socket directories"))


@pytest.mark.parametrize("option", ["private", "slave", "unbindable"])
def test_a_mount_below_the_volume(host: Shared, gpu_host: Host, option: str) -> None:
    """runc makes the volume's own mount private, and leaves those below it as they are."""
    host.image(LINKS["all"], f"{INSIDE}/below")
    assert not kept(host.run(gpu_host, host.volume(option), propagation="shared"), gpu_host)
    assert kept(host.run(gpu_host, host.volume(f"r{option}"), propagation="shared"), gpu_host)


@pytest.mark.parametrize("above", ["/usr/lib", f"/{LIBS}", "/usr//lib/../lib/"])
def test_the_driver_comes_on_top_of_a_volume_or_not_at_all(host: Shared, gpu_host: Host, above: str) -> None:
    host.image([])
    assert kept(host.run(gpu_host, host.volume("rprivate", above), propagation="shared"), gpu_host)
    assert not kept(host.run(gpu_host, host.volume("rshared", above), propagation="shared"), gpu_host)
    both = [{**ALWAYS, "options": ["bind"]}, host.volume("rprivate", above)]
    assert not kept(host.run(gpu_host, *both, propagation="shared"), gpu_host)


@pytest.mark.parametrize("way", [*WAYS, "CDI"])
@pytest.mark.parametrize(
    ("option", "propagation"), [("shared", "shared"), ("shared", "slave"), ("private", "shared")]
)
def test_a_mount_of_the_hosts_below_the_rootfs(
    host: Shared, gpu_host: Host, option: str, propagation: str, way: str
) -> None:
    """It comes before all of config.json, and is the host's peer, too."""
    host.image([])
    place = f"{host.plain['root']['path']}/usr"
    subprocess.run([*host.prefix, "/bin/mount", "-t", "tmpfs", "none", place], check=True)
    subprocess.run([*host.prefix, "/bin/mount", f"--make-{option}", place], check=True)
    try:
        ran = kept(host.run(gpu_host, propagation=propagation, way=way), gpu_host)
    finally:
        subprocess.run([*host.prefix, "/bin/umount", "--lazy", place], check=True)
    assert ran == (option == "private" and way == "shim")  # a hook mounts on nothing of the host's at all


# Volumes as they are, or could be, described; where each is, and what rootfsPropagation says.
ODD: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "on the root": ("shared", [{"destination": "/", "options": ["rbind", "rshared"]}]),
    "on the root, private": ("shared", [{"destination": "/", "options": ["rbind", "rprivate"]}]),
    "up and down": ("shared", [{"destination": "/data/../data//x/..", "options": ["rbind", "rshared"]}]),
    "relative": ("shared", [{"destination": "data", "options": ["rbind", "rshared"]}]),
    "shared, then private": ("shared", [{"options": ["rbind", "rshared", "rprivate"]}]),
    "private, then shared": ("shared", [{"options": ["rprivate", "rbind", "rshared"]}]),
    "slave, then shared": ("rshared", [{"options": ["rbind", "rslave", "rshared"]}]),
    "private at the top alone": ("shared", [{"options": ["rbind", "private", "rshared"]}]),
    "both kinds of bind": ("shared", [{"options": ["bind", "rbind", "private"]}]),
    "another type": ("shared", [{"type": "tmpfs", "options": ["rbind", "rshared"]}]),
    "no type": ("shared", [{"type": "none", "options": ["rbind"]}]),
    "nested": (
        "shared",
        [{"options": ["rbind", "rprivate"]}, {"destination": "/data/below", "options": ["rbind", "rshared"]}],
    ),
    "below the driver's": ("shared", [{"destination": f"/{LIBS}/below", "options": ["rbind", "rshared"]}]),
    "a tmpfs of its own": ("rshared", [{"type": "tmpfs", "source": "tmpfs", "options": ["rshared"]}]),
    "all of the host": ("rshared", [{"source": "/", "options": ["rbind", "rshared"]}]),
    "twice": ("shared", [{"options": ["rbind", "rprivate"]}, {"options": ["rbind", "rshared"]}]),
    "a word that nobody knows": ("rshared ", [{"options": ["rbind", "rshared"]}]),
}


@pytest.mark.parametrize(("way", "links"), [("shim", "nothing"), ("shim", "all"), ("CDI", "all")])
@pytest.mark.parametrize("odd", ODD)
def test_odd_volumes(host: Shared, gpu_host: Host, odd: str, way: str, links: str) -> None:
    host.image(LINKS[links])
    propagation, volumes = ODD[odd]
    usual = host.volume(None)
    outcome = host.run(gpu_host, *({**usual, **one} for one in volumes), propagation=propagation, way=way)
    driver = "/".join(Path(gpu_host.root).parts[-2:])  # what else is on such a volume is the runtime's
    assert not [line for line in outcome.reached if driver in line.split()[3]], outcome
    assert not outcome.left, outcome
    assert "internal error" not in outcome.said[1]


@pytest.mark.parametrize("way", ["shim", "CDI"])
@pytest.mark.parametrize("links", ["nothing", "all"])
def test_a_user_namespace(host: Shared, gpu_host: Host, links: str, way: str) -> None:
    """Its mounts are the host's slaves, but the runtime's side of them is not in it yet."""
    other = host.of(host.place)
    mapped = [{"containerID": 0, "hostID": 0, "size": 65536}]
    linux = {**host.plain["linux"], "uidMappings": mapped, "gidMappings": mapped}
    linux["namespaces"] = [*linux["namespaces"], {"type": "user"}]
    other.plain = {**host.plain, "linux": linux}
    other.image(LINKS[links])
    outcome = other.run(gpu_host, host.volume("rshared"), propagation="rshared", way=way)
    assert not outcome.reached, outcome
    assert not outcome.left, outcome
    assert bool(outcome.status) == (links == "all"), outcome


LEGITIMATE = ["/csi", "/var/lib/docker", "/var/lib/kubelet/pods", "/mnt/fuse/", INSIDE]


@pytest.mark.parametrize("way", ["shim", "CDI"])
@pytest.mark.parametrize("at", LEGITIMATE)
def test_volumes_that_are_meant_to_be_shared(host: Shared, gpu_host: Host, at: str, way: str) -> None:
    """Of CSI plugins, Docker in Docker, file systems of FUSE."""
    host.image([])
    assert kept(host.run(gpu_host, host.volume("rshared", at), propagation="rshared", way=way), gpu_host)


def test_the_hook_takes_away_what_has_reached_the_host(host: Shared, gpu_host: Host) -> None:
    """As if create had put the mount behind the volume."""
    host.image(LINKS["library directory"])
    name = f"{LIBS}/libcuda.so.{gpu_host.driver}"
    source, rootfs = f"{gpu_host.root}/{name}", host.plain["root"]["path"]
    spec = json.loads(json.dumps(host.plain))
    ours = {"destination": f"/{name}", "source": source, "type": "bind", "options": ["ro", "rbind", "rprivate"]}
    spec["mounts"] += [host.volume("rshared"), ours]
    spec["linux"]["rootfsPropagation"] = "shared"
    words = ["gpushim-hook", "prestart", "--rootfs", rootfs, "--mounted", f"{source}::/{name}"]
    hook = str(host.place.top / "bin/gpushim-hook")
    spec["hooks"] = {"prestart": [{"path": hook, "args": words, "env": ["PATH=/usr/bin"]}]}
    spec["process"]["args"] = ["/bin/busybox", "true"]
    before = host.mounts()
    outcome = host.start(spec, host.place.program)
    assert outcome.status
    assert "was taken away again" in outcome.said[1] or host.place.program != RUNC
    assert host.mounts() == before
    spec["mounts"][-2:] = [ours, host.volume("rshared")]
    hidden = host.start(spec, host.place.program)
    assert f"would start without /{name}" in hidden.said[1] or host.place.program != RUNC


def test_the_escape(place: Place, shared_by: tuple[str, str], gpu_host: Host, tmp_path: Path) -> None:
    """A later container, without a GPU and with the volume alone, writes into the host's driver."""
    with shared(tmp_path, place, shared_by[0]) as attacked:
        attacked.image(LINKS["library directory"])
        first = attacked.run(gpu_host, attacked.volume("rshared"), propagation="shared")
        writable = [line for line in first.reached if line.split()[5].startswith("rw")]
        assert not writable, "the host's driver lies open"
        assert not kept(first, gpu_host)
