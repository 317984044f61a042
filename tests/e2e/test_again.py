"""A bundle that is created again and again: its config.json is that of one create on the last host."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import engines, trees
from e2e.bundles import Bundle
from e2e.expect import sees_exactly
from e2e.faults import KILL, Call, strike
from e2e.hostile import HOOK
from e2e.witness import RUNC, settings
from fakehost import Host
from gpushim.ground.errors import BUNDLE

REQUESTS = ["0", "1", "0,2", "all", "void", "none", ""]
CAPABILITIES = ["compute", "all", "utility"]
Make = Callable[[str], Bundle]


@pytest.fixture(scope="module")
def hosts(gpu_host: Host, low: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Settings for two hosts of other GPUs, minor numbers and drivers."""
    cache = str(trees.TOP / ".cache" / "fakehost")
    other = fakehost.build(str(tmp_path_factory.mktemp("other") / "root"), 4, compile_cache=cache)
    found = []
    for host in (gpu_host, other):
        env = settings(tmp_path_factory.mktemp("settings"), host.root, str(low))
        engines.run([str(trees.TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
        found.append(env)
    return found


@pytest.fixture
def make(hosts: list[dict[str, str]], tmp_path: Path) -> Make:
    """A function that makes a bundle by its name."""
    return lambda name: Bundle(tmp_path / name, tmp_path, hosts[0])


def create(bundle: Bundle) -> bytes:
    bundle.call("create", "--bundle", str(bundle.directory), bundle.id)
    return bundle.config.read_bytes()


def ask(spec: Any, request: str, capabilities: str) -> str:
    """Write a request into a config.json, whoever has written the rest."""
    env = [entry for entry in spec["process"]["env"] if not entry.startswith("NVIDIA_")]
    asked = [f"NVIDIA_VISIBLE_DEVICES={request}"] if request else []
    spec["process"]["env"] = [*env, *asked, f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    return json.dumps(spec)


@pytest.mark.parametrize("seed", range(4))
def test_creates_on_changing_hosts(make: Make, hosts: list[dict[str, str]], seed: int) -> None:
    random.seed(seed)
    again, once = make("again"), make("once")
    once.plain = again.plain
    again.ask(args=["true"])
    for _ in range(6):
        request, capabilities = random.choice(REQUESTS), random.choice(CAPABILITIES)
        again.env = once.env = random.choice(hosts)
        again.config.write_text(ask(again.spec, request, capabilities))
        created = create(again)
        once.ask(args=["true"])
        once.config.write_text(ask(once.spec, request, capabilities))
        assert json.loads(created) == json.loads(create(once)), (request, capabilities)
        assert create(again) == created  # nobody has changed it


def test_a_restart_on_another_host(make: Make, hosts: list[dict[str, str]]) -> None:
    """Nobody has written config.json meanwhile: all of the last host's is gone."""
    again, once = make("again"), make("once")
    for bundle in (again, once):
        bundle.ask("NVIDIA_VISIBLE_DEVICES=all", args=["true"])
    create(again)
    once.config.write_bytes((again.directory / "config.json.gpushim").read_bytes()[-len(once.config.read_bytes()) :])
    again.env = once.env = hosts[1]
    assert create(again) == create(once)


@pytest.mark.parametrize("what", [KILL, "error=ENOSPC"])
def test_a_create_that_ends_at_any_rename_leaves_nothing_of_an_earlier_one(
    make: Make, hosts: list[dict[str, str]], what: str
) -> None:
    again, once = make("again"), make("once")
    once.plain = again.plain
    once.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
    wanted = create(once)
    for number in (1, 2, 3):
        (again.directory / "config.json.gpushim").unlink(missing_ok=True)
        again.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
        again.env = hosts[1]
        create(again)
        again.env = hosts[0]
        command = [str(again.runtime), "create", "--bundle", str(again.directory), again.id]
        assert strike(command, Call("renameat", number, ""), what, env=again.env), number
        assert create(again) == wanted, number


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


# What becomes of what was kept, by whoever may write into the bundle.
FORGED: dict[str, Callable[[Path], object]] = {
    "for all to write": lambda path: path.chmod(0o666),
    "another owner's": lambda path: os.chown(path, 65534, 65534),
    "a link": link,
    "a FIFO": fifo,
    "huge": lambda path: os.truncate(path, 1 << 40),
    "cut": lambda path: os.truncate(path, 9),
    "no number": lambda path: path.write_bytes(b"x" + path.read_bytes()),
    "a long number": lambda path: path.write_bytes(b"9" * 5000 + b"\n"),
    "a negative number": lambda path: path.write_bytes(b"-1\n{}{}"),
    "of another bundle": lambda path: path.write_bytes(b"2\n{}{}"),
    "deep": lambda path: path.write_bytes(b"2\n{}" + b"[" * 100_000),
}


def created_of(saved: Path) -> tuple[bytes, bytes, bytes]:
    """Part what a create has kept."""
    number, _, rest = saved.read_bytes().partition(b"\n")
    return number + b"\n", rest[: int(number)], rest[int(number) :]


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_what_is_forged_counts_for_nothing(make: Make, forge: Callable[[Path], object]) -> None:
    """Not even if somebody has changed config.json, too, so that it alone could tell."""
    bundle = make("bundle")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
    created = create(bundle)
    saved = bundle.directory / "config.json.gpushim"
    number, result, before = created_of(saved)
    saved.write_bytes(number + result + before.replace(b'"true"', b'"evil"'))
    forge(saved)
    assert json.loads(create(bundle)) == json.loads(created)
    bundle.config.write_text(json.dumps({**bundle.spec, "hostname": "changed"}))
    assert json.loads(create(bundle)) == {**json.loads(created), "hostname": "changed"}


# What backups, copies and well-meant commands make of it.
LOST: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "for all to read": lambda path: path.chmod(0o644),
    "another owner's": FORGED["another owner's"],
    "a second name": lambda path: os.link(path, path.with_name("second")),
    "huge": FORGED["huge"],
    "of another bundle": FORGED["of another bundle"],
}


@pytest.mark.parametrize("request_", ["void", "1"])
@pytest.mark.parametrize("lose", LOST.values(), ids=LOST)
def test_no_gpu_of_an_earlier_request_stays(make: Make, lose: Callable[[Path], object], request_: str) -> None:
    again, once = make("again"), make("once")
    once.plain = again.plain
    again.ask(args=["true"])
    again.config.write_text(ask(again.spec, "0,2", "all"))
    assert b'"/dev/nvidiactl"' in create(again)
    lose(again.directory / "config.json.gpushim")
    once.ask(args=["true"])
    for bundle in (again, once):
        bundle.config.write_text(ask(bundle.spec, request_, "compute"))
    assert json.loads(create(again)) == json.loads(create(once))


def test_nor_where_somebody_has_taken_out_the_hooks(make: Make) -> None:
    bundle = make("bundle")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
    before = bundle.spec
    create(bundle)
    bundle.config.write_text(ask({**bundle.spec, "hooks": {}}, "void", "all"))
    assert json.loads(create(bundle)) == json.loads(ask(before, "void", "all"))


def test_a_directory_in_its_place_is_a_refusal_that_names_it(make: Make) -> None:
    bundle = make("bundle")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
    before = bundle.config.read_bytes()
    (bundle.directory / "config.json.gpushim").mkdir()
    done = bundle.call("create", "--bundle", str(bundle.directory), bundle.id, check=False)
    assert done.returncode == BUNDLE
    assert "config.json.gpushim cannot be replaced: Is a directory" in done.stderr
    assert bundle.config.read_bytes() == before


def test_the_hook_alone_leaves_nothing_that_the_next_run_sees(bundle: Bundle, gpu_host: Host) -> None:
    """The same bundle, run again and again by runc itself."""
    variables = [f"{key}={value}" for key, value in bundle.env.items()]
    hook = {"path": str(HOOK), "args": [HOOK.name, "prestart"], "env": ["PATH=/usr/bin", *variables]}
    bundle.plain["hooks"] = {"prestart": [hook]}
    bundle.runtime = Path(RUNC)
    for indices in ([0, 1, 2], [1], [0, 2]):
        wanted = ",".join(map(str, indices))
        sees_exactly(bundle.look(gpu_host, indices, f"NVIDIA_VISIBLE_DEVICES={wanted}"), gpu_host, indices)
        assert [path.name for path in bundle.directory.glob("config.json*")] == ["config.json"]
        assert "gpushim-hook" not in bundle.config.read_text()


def test_a_container_without_a_request_leaves_nothing(make: Make) -> None:
    bundle = make("bundle")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=void", args=["true"])
    create(bundle)
    assert not list(bundle.directory.glob("config.json.*"))
