"""Each bound of gpushim.ground.bounds: as much as may be is taken, one more is not, and both cost little.

What an image brings meets the hook as a process, whose processor time and memory are measured; what a container asks
for meets the runtime. An attack under the real runc is at the end.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import big, cost
from e2e.bad_images import image
from e2e.bad_images import scene as scene
from e2e.bad_input import Scene
from e2e.bounded_hook import FINISH, finish, hook_of, padded
from e2e.cost import Cost
from e2e.hostile import LIBS as MULTIARCH
from e2e.hostile import Trap
from e2e.hostile_places import Place
from e2e.trees import TOP
from fakehost import Host
from gpushim.ground import bounds
from unit.gpuhook import notes
from unit.gpuhook.trees import DRV

SECONDS, TIMES = 1.0, 20  # of processor time: what is more than both of these is too much
MEMORY = 64 << 20  # bytes
Make = Callable[[Path, int], object]

UPDATE = ("nvidia-cdi-hook", "update-ldcache", "--folder", f"/{big.LIBRARIES}")
# What is made, by which bound, how much more than that is too much, what is said then, and the hook that meets it.
IMAGES: dict[str, tuple[Make, int, str, tuple[str, ...]]] = {
    "LOADER_CACHE": (big.large_cache, 1, "/etc/ld.so.cache: File too large", FINISH),
    "CACHE_EQUAL": (big.equal_names, 1, "more than 128 entries in it are one name", FINISH),
    "CACHE_DIGITS": (big.long_number, 1, "or is mostly digits", FINISH),
    "CACHE_SECTIONS": (big.sections, 1, "its extension directory cannot be read", FINISH),
    "CACHE_HWCAPS": (big.hwcaps, 1, "too many glibc-hwcaps names", FINISH),
    "LOADER_CONF": (big.conf, 1, "/etc/ld.so.conf.d/00-gpushim.conf: File too large", FINISH),
    "COMPAT_NAMES": (big.compat_names, 1, "/usr/local/cuda/compat: File too large", FINISH),
    "COMPAT_LIBRARIES": (big.compat_libraries, 1, "there are more than 64 libraries", FINISH),
    "COMPAT_NOTE": (big.note, 4, ".note.cuda.fwd_compatibility has 65540 bytes", FINISH),
    "ELF_SECTIONS": (big.elf, 1, "its table of sections is odd", FINISH),
    "ELF_NAMES": (big.elf_names, 1, "the names of its sections are odd", FINISH),
    "LINKS": (big.links, 1, "/etc/ld.so.cache: Too many levels of symbolic links", FINISH),
    "WORDS": (big.words, 2, "/etc/ld.so.cache: Too many levels of symbolic links", FINISH),
    "FOLDER_NAMES": (big.library_names, 1, f"/{big.LIBRARIES}: File too large", UPDATE),
    "FOLDER_LIBRARIES": (big.libraries, 1, "there are more than 4096 libraries", UPDATE),
}


def is_cheap(done: Cost, usual: Cost) -> None:
    """Assert that a hook took little, also on a machine that is slow or busy."""
    assert done.user + done.system < max(SECONDS, TIMES * (usual.user + usual.system)), done
    assert done.memory < MEMORY, done


@pytest.mark.parametrize("name", IMAGES)
def test_what_an_image_brings(tmp_path: Path, pid: int, place: Place, name: str) -> None:
    make, more, said, words = IMAGES[name]
    for number in (getattr(bounds, name), getattr(bounds, name) + more):
        work = tmp_path / str(number)
        work.mkdir()
        root = image(work)
        usual, _ = finish(work, place, pid, words)
        shutil.rmtree(root)
        shutil.rmtree(work / "canary")
        make(image(work), number)
        done, log = finish(work, place, pid, words)
        assert done.code == 0, log
        assert (said in log) == (number > getattr(bounds, name)), log
        is_cheap(done, usual)
        shutil.rmtree(work)


@pytest.mark.parametrize(
    ("name", "make", "more"),
    [("ELF_SEGMENTS", big.segments, 1), ("ELF_DYNAMIC", big.dynamic, 16), ("ELF_SONAME", big.soname, 1)],
)
def test_a_library_for_the_loaders_cache(
    tmp_path: Path, pid: int, place: Place, name: str, make: Make, more: int
) -> None:
    """What is beyond is no library to the hook, and the loader does not learn of it."""
    for number in (getattr(bounds, name), getattr(bounds, name) + more):
        work = tmp_path / str(number)
        work.mkdir()
        root = image(work)
        usual, _ = finish(work, place, pid, UPDATE)
        make(root, number)
        done, said = finish(work, place, pid, UPDATE)
        assert done.code == 0, said
        assert (big.BIG.encode() in (root / big.CACHE).read_bytes()) == (number == getattr(bounds, name))
        is_cheap(done, usual)


def test_a_path_of_the_drivers(tmp_path: Path, pid: int, place: Place) -> None:
    """PATH, and LOG_TEXT: the name of what was skipped would fill a page of the log."""
    root, folder = image(tmp_path), DRV + ("/" + "d" * 200) * 30
    for length, said in ((bounds.PATH - 2, False), (bounds.PATH - 1, True)):
        link = f"x::{folder[:length]}/name"
        done, log = finish(tmp_path, place, pid, (*FINISH, "--link", link))
        assert (done.code, "skipped " + DRV in log) == (0, said), log
    assert root.is_dir()


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_killed_hook_left_among_many_names(tmp_path: Path, pid: int, place: Place, times: int) -> None:
    """LEFT_BEHIND: beyond it, some of that may stay."""
    usual, _ = finish(tmp_path, place, pid) if image(tmp_path) else (None, "")
    assert usual
    big.left_behind(tmp_path / "root", times * bounds.LEFT_BEHIND - 2)  # beside two names that the hook makes
    (tmp_path / "root" / DRV[1:] / "libcuda.so.1").unlink()
    (tmp_path / "root" / DRV[1:] / "libcuda.so.1").write_text("in the way")
    done, _ = finish(tmp_path, place, pid)
    assert done.code == 0
    is_cheap(done, usual)
    assert times > 1 or not (tmp_path / "root" / DRV[1:] / (".gpushim-" + "a" * 16)).exists()


@pytest.mark.parametrize("more", [0, 1])
def test_a_large_state(tmp_path: Path, pid: int, place: Place, more: int) -> None:
    """STATE."""
    image(tmp_path)
    usual, _ = finish(tmp_path, place, pid)
    done, said = finish(tmp_path, place, pid, state=padded({"pid": pid}, bounds.STATE + more))
    assert (done.code, "has more than 1048576 bytes" in said) == ((16, True) if more else (0, False)), said
    is_cheap(done, usual)


def devices(number: int) -> list[str]:
    return ["NVIDIA_VISIBLE_DEVICES=" + ",".join(["0"] * number)]


def condition(number: int) -> list[str]:
    return ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=" + "cuda>=1.0 ".ljust(number)[:number]]


def conditions(number: int) -> list[str]:
    return ["NVIDIA_VISIBLE_DEVICES=0", *(f"NVIDIA_REQUIRE_{n}=cuda>=1.0" for n in range(number))]


def conditions_text(number: int) -> list[str]:
    value = "cuda>=1.0 ".ljust(bounds.VALUE, " ")
    whole = [f"NVIDIA_REQUIRE_{n}={value}" for n in range(number // bounds.VALUE)]
    return ["NVIDIA_VISIBLE_DEVICES=0", *whole, "NVIDIA_REQUIRE_CUDA=" + " " * (number % bounds.VALUE)]


ASKED: dict[str, tuple[Callable[[int], list[str]], int, str]] = {
    "DEVICES": (devices, 0, "4096 items"),
    "DEVICE_RANGE": (lambda number: [f"NVIDIA_VISIBLE_DEVICES=0-{number - 1}"], 10, "names the range"),
    "VALUE": (condition, 0, "has more than 65536 characters"),
    "CONDITIONS_TEXT": (conditions_text, 0, "more than 1048576 characters"),
    "CONDITIONS": (conditions, 0, "has more than 4096 NVIDIA_REQUIRE_* variables"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_a_container_asks_for(scene: Scene, tmp_path: Path, name: str) -> None:
    make, code, said = ASKED[name]
    usual = create(scene.renew(), tmp_path)
    for more in (0, 1):
        scene.renew().ask(*make(getattr(bounds, name) + more))
        done = create(scene, tmp_path)
        assert (done.code, said in done.stderr) == ((10, True) if more else (code, False)), done
        is_cheap(done, usual)


@pytest.mark.parametrize("count", [100, 8000])
def test_names_that_are_long_links(tmp_path: Path, place: Place, pid: int, count: int) -> None:
    """LINK_TEXT: each link may be long, and 16384 names may be links; beyond it they lead nowhere."""
    usual, _ = finish(tmp_path, place, pid, UPDATE) if image(tmp_path) else (None, "")
    assert usual
    big.long_links(tmp_path / "root", count)
    done, said = finish(tmp_path, place, pid, UPDATE)
    assert done.code == 0, said
    is_cheap(done, usual)
    names = set(re.findall(rb"libx\d{4}.so.1", (tmp_path / "root" / big.CACHE).read_bytes()))
    assert len(names) == min(count, 130)


def test_channels_that_are_not_there(scene: Scene, tmp_path: Path) -> None:
    """LISTED: a line of the log does not grow with what an image says."""
    log = Path(tmp_path / "log")
    config = Path(scene.renew().env["GPUSHIM_CONFIG"])
    before = config.read_text() if config.exists() else ""
    channels = ",".join(str(1000000 + number) for number in range(4096))
    scene.ask("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_IMEX_CHANNELS={channels}")
    log = Path(next(line.split('"')[1] for line in before.splitlines() if line.startswith("file = ")))
    assert create(scene, tmp_path).code == 12
    line = log.read_text().splitlines()[-1]
    assert len(line) < 4096
    assert f" and {4096 - bounds.LISTED} more, but" in json.loads(line)["msg"]


def test_keys_of_a_note(tmp_path: Path, place: Place, pid: int) -> None:
    """COMPAT_NOTE: to find out which of thousands of keys is there twice took a second."""
    keys = [f'"{number:04x}":0' for number in range(7000)]
    usual, _ = finish(tmp_path, place, pid) if image(tmp_path) else (None, "")
    assert usual
    big.libcuda(tmp_path / "root", notes.library("{" + ",".join([*keys, keys[-1]]) + "}"))
    done, log = finish(tmp_path, place, pid)
    assert (done.code, 'the key \\"1b57\\" twice' in log) == (0, True), log
    assert done.user + done.system < 0.2 + usual.user + usual.system


@pytest.mark.parametrize("depth", range(970, 1000, 5))
def test_a_note_that_is_nested(tmp_path: Path, place: Place, pid: int, depth: int) -> None:
    """COMPAT_NOTE: as deeply as can just be read; to say what is wrong with it needs a little more."""
    image(tmp_path)
    big.libcuda(tmp_path / "root", notes.library("[" * depth + "x"))
    done, log = finish(tmp_path, place, pid)
    assert (done.code, "skipped /usr/local/cuda/compat" in log) == (0, True), log


def create(scene: Scene, work: Path) -> Cost:
    """Have a container created, as far as the low-level runtime."""
    env = {**scene.env, "RECORD": str(scene.record)}
    return cost.of(work, TOP / "bin/gpushim-runtime", *scene.words(), env=env)


def yaml(value: str) -> str:
    return (
        f"cdiVersion: 0.5.0\nkind: evil.com/card\ndevices: [{{name: a, containerEdits: {{env: [A=1]}}}}]\n{value}\n"
    )


def spec(number: int) -> str:
    return yaml("").ljust(number, "#")


CDI: dict[str, tuple[Callable[[int], str], str]] = {
    "SPEC": (spec, "more than 4 MiB"),
    "YAML_ALIASES": (lambda number: yaml("x: [&a 1" + ", *a" * number + "]"), "more than 64 aliases"),
    "YAML_DEPTH": (lambda number: yaml("x: " + "[" * (number - 1) + "1" + "]" * (number - 1)), "nested too deeply"),
    "YAML_DIGITS": (lambda number: yaml("x: " + "9" * number), "not a usable number"),
}


@pytest.fixture
def specs(scene: Scene) -> Iterator[Path]:
    """An empty directory of CDI specs."""
    folder = Path(scene.env["GPUSHIM_CONFIG"]).with_name("cdi")
    folder.mkdir(exist_ok=True)
    yield folder
    shutil.rmtree(folder)


def create_of_spec(scene: Scene, work: Path) -> Cost:
    scene.renew().ask("NVIDIA_VISIBLE_DEVICES=evil.com/card=a")
    return create(scene, work)


@pytest.mark.parametrize("name", CDI)
def test_what_a_cdi_spec_has(scene: Scene, specs: Path, tmp_path: Path, name: str) -> None:
    make, said = CDI[name]
    (specs / "a.yaml").write_text(yaml(""))
    usual = create_of_spec(scene, tmp_path)
    assert usual.code == 0, usual
    for more in (0, 1):
        (specs / "a.yaml").write_text(make(getattr(bounds, name) + more))
        done = create_of_spec(scene, tmp_path)
        assert (said in done.stderr) == bool(more), done
        is_cheap(done, usual)


def test_a_directory_of_cdi_specs(scene: Scene, specs: Path, tmp_path: Path) -> None:
    """SPECS."""
    (specs / "a.yaml").write_text(yaml(""))
    usual = create_of_spec(scene, tmp_path)
    for number in range(1, bounds.SPECS):
        (specs / f"b{number}.json").write_text("{}")
    done = create_of_spec(scene, tmp_path)
    assert done.code == 0, done
    is_cheap(done, usual)
    (specs / "c.json").write_text("{}")
    assert "it has more than 1024 specs" in create_of_spec(scene, tmp_path).stderr


@pytest.mark.parametrize(
    ("size", "code"), [(bounds.CONFIG_JSON, 0), (bounds.CONFIG_JSON + 1, 14)], ids=["most", "more"]
)
def test_a_hook_that_reads_config_json(tmp_path: Path, pid: int, place: Place, size: int, code: int) -> None:
    """CONFIG_JSON: the engine's, so it may cost more than what an image brings, and less than the hook may have."""
    image(tmp_path)
    words = tuple(word for word in FINISH if word not in ("--rootfs", "ROOT"))
    done, said = finish(tmp_path, place, pid, words)
    assert done.code == 0, said
    config = b'{"root":{"path":"root"},"annotations":{"a":"' + b"x" * (size - 47) + b'"}}'
    assert len(config) == size
    done = hook_of(tmp_path, place, pid, words, config)
    assert done.code == code, done
    assert done.memory < bounds.HOOK_MEMORY


@pytest.fixture
def trap(debian_root: Path, tmp_path: Path, place: Place) -> Trap:
    return Trap(tmp_path, debian_root, place)


LOADS = ["/usr/bin/python3", "-c", "import ctypes; ctypes.CDLL('libcuda.so.1'); print('loaded')"]


def test_an_image_whose_names_are_all_one(trap: Trap, gpu_host: Host) -> None:
    """T-bounds: 40 kB compressed. The cache stays as it is, and the loader finds the driver where it always looks."""
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    trap.creates = False  # of a child of the create's nothing is measured
    trap.bundle.prefix = (*cost.meter(trap.work / "cost"), *trap.bundle.prefix)
    trap.run()
    usual = cost.read(trap.work / "cost")
    for count in (690_000, (bounds.LOADER_CACHE - 200) // 24):
        trap.write(big.CACHE, big.same(count))
        (trap.root / MULTIARCH / "libcuda.so.1").unlink(missing_ok=True)
        trap.ask("NVIDIA_VISIBLE_DEVICES=all", args=LOADS)
        with trap.harmless(gpu_host):
            done = trap.run()
        assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr
        user, system, memory = cost.read(trap.work / "cost")
        is_cheap(Cost(0, "", user, system, memory), Cost(0, "", *usual))
        assert (trap.root / MULTIARCH / "libcuda.so.1").is_symlink()
