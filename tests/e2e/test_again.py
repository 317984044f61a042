"""A bundle that is created again and again gets what one create on the last host gives it, if nobody edits it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import engines, pages, trees
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
    request, capabilities = "all", "all"
    again.ask(args=["true"])
    again.config.write_text(ask(again.spec, request, capabilities))
    for _ in range(6):
        again.env = once.env = random.choice(hosts)
        if random.random() < 0.5:  # the engine writes it again
            request, capabilities = random.choice(REQUESTS), random.choice(CAPABILITIES)
            again.ask(args=["true"])
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


def test_an_edited_one_counts_as_it_is(make: Make) -> None:
    """What an edit leaves of the earlier create stays."""
    bundle = make("bundle")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
    before = json.loads(create(bundle))["linux"]["devices"]
    bundle.config.write_text(ask(bundle.spec, "1", "utility"))
    after = json.loads(create(bundle))["linux"]["devices"]
    assert [node for node in after if node in before] == before
    assert len(after) == len(before) + 1


def test_the_engines_is_taken_back_as_the_page_says(make: Make) -> None:
    (command,) = [
        block.text
        for block in pages.blocks((trees.TOP / "docs/requests.md").read_text())
        if "config.json.gpushim" in block.text
    ]
    bundle = make("bundle")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
    before = bundle.config.read_bytes()
    create(bundle)
    engines.run(["/bin/sh", "-ec", f"cd {bundle.directory}; {command}"])
    assert bundle.config.read_bytes() == before


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
