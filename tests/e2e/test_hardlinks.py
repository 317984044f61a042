"""One mount for the libraries of a capability: under real runtimes, containers find each as they do without."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from e2e import engines, test_hostile, trees
from e2e.bundles import Bundle
from e2e.cdihooks import run
from e2e.expect import probe, sees_exactly
from e2e.hostile import WAYS, Trap
from e2e.test_hostile import out, up, write
from e2e.test_standalone import alone
from e2e.views import view
from e2e.witness import RUNC, settings
from fakehost import Host
from gpushim.decision.plan import HARDLINKS
from gpushim.inventory import hardlinks

CRUN = "/usr/bin/crun"
ASKS = "NVIDIA_VISIBLE_DEVICES=0,2"
ALL = (ASKS, "NVIDIA_DRIVER_CAPABILITIES=all")
TRAPS = {
    **{name: lay for name, lay in test_hostile.TRAPS.items() if "library" in name},
    "where they are mounted": out(HARDLINKS[1:], ""),
    "where they are mounted, up": up(HARDLINKS[1:], ""),
    "where they are mounted is a file": write(HARDLINKS[1:], b""),
    "where some are mounted": out(f"{HARDLINKS[1:]}/compute", "lib"),
}
LOAD = "import ctypes, sys; [ctypes.CDLL(name) for name in sys.argv[1:]]; print('loaded')"


@pytest.fixture(scope="module")
def env(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables that point the shim at the simulated host, with a directory of hard links."""
    place = tmp_path_factory.mktemp("hardlinks")
    env = settings(place, gpu_host.root, libraries=str(place / "libraries"))
    engines.run([str(trees.TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    return env


@pytest.fixture(scope="module")
def names(env: dict[str, str]) -> list[str]:
    """The usual path and the SONAME of each 64-bit library in one of the directories."""
    files = json.loads(Path(env["GPUSHIM_STATE"], "inventory.json").read_text())["files"].values()
    chosen = [file for group in files for file in group if "in" in file and file["kind"] == "library"]
    return [name for file in chosen for name in (file["path"], file["soname"])]


@pytest.fixture
def bundle(debian_root: Path, tmp_path: Path, env: dict[str, str]) -> Bundle:
    return Bundle(tmp_path / "bundle", debian_root, env)


def known(bundle: Bundle, script: str) -> list[str]:
    """Run a script in a container with all capabilities; return what it prints in order."""
    bundle.ask(*ALL, args=["/bin/sh", "-euc", script])
    return sorted(bundle.call("run", "--bundle", str(bundle.directory), bundle.id).stdout.splitlines())


def test_the_gpus_asked_for_and_a_mount_for_each_capability(bundle: Bundle, gpu_host: Host) -> None:
    sees_exactly(bundle.look(gpu_host, [0, 2], ASKS), gpu_host, [0, 2])
    mounted = [mount["destination"] for mount in bundle.spec["mounts"]]
    assert sorted(path for path in mounted if path.startswith(HARDLINKS)) == [
        f"{HARDLINKS}/compute",
        f"{HARDLINKS}/utility",
    ]
    assert not [path for path in mounted if ".so" in path]


@pytest.mark.parametrize("readonly", [False, True])
def test_each_library_loads_by_its_usual_path_and_by_its_soname(
    bundle: Bundle, names: list[str], readonly: bool
) -> None:
    assert len(names) > 50
    bundle.plain["root"]["readonly"] = readonly
    bundle.ask(*ALL, args=["python3", "-c", LOAD, *names])
    assert bundle.call("run", "--bundle", str(bundle.directory), bundle.id).stdout == "loaded\n"


def test_an_overlay_is_known_where_a_link_would_be_a_copy(bundle: Bundle, tmp_path: Path) -> None:
    assert hardlinks._links_are_free(str(tmp_path))
    assert not hardlinks._links_are_free(str(bundle.rootfs))


@pytest.mark.parametrize("script", ["ldconfig -p", "ldconfig; ldconfig -p"])
def test_loader_knows_what_it_knows_without(
    bundle: Bundle, tmp_path: Path, gpushim_env: dict[str, str], debian_tree: Path, script: str
) -> None:
    """Also after a user's own ldconfig."""
    (tmp_path / "other").mkdir()
    with trees.overlay(debian_tree, tmp_path / "other") as root:
        without = known(Bundle(tmp_path / "without", root, gpushim_env), script)
    assert known(bundle, script) == without
    assert [line for line in without if "libcuda.so.1" in line]


def test_usual_place_on_a_volume_is_left_alone(bundle: Bundle, gpu_host: Host, tmp_path: Path) -> None:
    place = "usr/lib/x86_64-linux-gnu"
    volume = shutil.copytree(bundle.rootfs / place, tmp_path / "volume", symlinks=True)
    before = sorted(path.name for path in volume.iterdir())
    bundle.plain["mounts"].append({"destination": f"/{place}", "source": str(volume), "options": ["bind"]})
    sees_exactly(bundle.look(gpu_host, [0, 2], ASKS), gpu_host, [0, 2])
    assert sorted(path.name for path in volume.iterdir()) == before


def test_container_that_ran_without_runs_with_and_without_again(
    bundle: Bundle, gpu_host: Host, env: dict[str, str], gpushim_env: dict[str, str]
) -> None:
    """What a start leaves in the rootfs harms no later one."""
    for settings_ in (gpushim_env, env, gpushim_env, env):
        bundle.env = settings_
        sees_exactly(bundle.look(gpu_host, [0, 2], ASKS), gpu_host, [0, 2])


@pytest.mark.parametrize("runtime", [RUNC, CRUN])
def test_the_hook_alone(bundle: Bundle, gpu_host: Host, runtime: str) -> None:
    alone(bundle, ASKS, args=probe(gpu_host, [0, 2]))
    with view("v1") as bundle.prefix:  # crun does not run under a mixture of v1 and v2
        sees_exactly(run(bundle, runtime).stdout, gpu_host, [0, 2])
    assert (bundle.rootfs / HARDLINKS[1:] / "compute").is_dir()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRAPS)
def test_an_image_of_links_harms_nothing(
    debian_root: Path, tmp_path: Path, env: dict[str, str], gpu_host: Host, name: str, way: str
) -> None:
    trap = Trap(tmp_path, debian_root, env, way)
    TRAPS[name](trap, gpu_host)
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    with trap.harmless(gpu_host):
        done = trap.run()
    if done.returncode:
        assert name == "where they are mounted is a file"
        trap.refused(done)
    else:
        trap.saw_nothing(done, gpu_host)
