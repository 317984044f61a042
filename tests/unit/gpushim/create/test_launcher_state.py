"""What the launcher believes of the state directory and of the configuration, in each shell that may be /bin/sh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Callable

import pytest

from unit.gpushim.calls import LAUNCHER, SHELLS, Call, tell
from unit.gpushim.calls import call as call
from unit.gpushim.calls import runtime as runtime

STRANGER = 4711
OLD, FUTURE = 10**18, 4 * 10**18  # of mtime, in nanoseconds


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(SHELLS[request.param])


@pytest.fixture
def told(tmp_path: Path, runtime: Path, call: Callable[..., Call]) -> Path:
    """The state directory as a refresh leaves it that has read a config.toml in which the runtime is another."""
    (tmp_path / "other").symlink_to(runtime)
    toml = tmp_path / "config.toml"
    toml.write_text(f'[runtime]\nlow-level = ["{tmp_path}/other"]\n')
    os.utime(toml, ns=(OLD, OLD))
    tell(tmp_path / "st ate", runtime, toml)
    return tmp_path / "st ate"


def believed(done: Call, tmp_path: Path) -> bool:
    """Return whether the launcher took the runtime that it was told, and not the configuration's."""
    return bool(done.record["argv"][0] != str(tmp_path / "other"))


TIMES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "as it was": (lambda toml: None, True),
    "older": (lambda toml: os.utime(toml, ns=(OLD - 10**9, OLD - 10**9)), False),
    "newer": (lambda toml: os.utime(toml, ns=(OLD + 10**9, OLD + 10**9)), False),
    "from the future": (lambda toml: os.utime(toml, ns=(FUTURE, FUTURE)), False),
    "replaced by an old one": (lambda toml: (toml.rename(f"{toml}~"), shutil.copy2("/bin/dash", toml)), False),
}


@pytest.mark.parametrize("case", TIMES)
def test_a_configuration_of_another_time(
    call: Callable[..., Call], shell: tuple[str, ...], told: Path, tmp_path: Path, case: str
) -> None:
    change, same = TIMES[case]
    toml = tmp_path / "config.toml"
    text = toml.read_text()
    change(toml)
    status = toml.stat()
    toml.write_text(text)
    os.utime(toml, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert believed(call("state", "x", before=shell), tmp_path) == same


@pytest.mark.parametrize("name", ["dash", "bash"])
def test_a_nanosecond_is_another_time(call: Callable[..., Call], told: Path, tmp_path: Path, name: str) -> None:
    """Of the shells, busybox alone compares seconds."""
    os.utime(tmp_path / "config.toml", ns=(OLD + 1, OLD + 1))
    assert not believed(call("state", "x", before=tuple(SHELLS[name])), tmp_path)


def test_a_time_in_the_future_is_a_time(
    call: Callable[..., Call], shell: tuple[str, ...], told: Path, runtime: Path, tmp_path: Path
) -> None:
    os.utime(tmp_path / "config.toml", ns=(FUTURE, FUTURE))
    tell(told, runtime, tmp_path / "config.toml")
    assert believed(call("state", "x", before=shell), tmp_path)


def test_a_link_to_another_configuration_of_the_same_time(
    call: Callable[..., Call], shell: tuple[str, ...], told: Path, runtime: Path, tmp_path: Path
) -> None:
    """As image-based systems and ConfigMaps have them: each file has the same time."""
    one, link = tmp_path / "one.toml", tmp_path / "config.toml"
    link.rename(one)
    shutil.copy2(one, tmp_path / "two.toml")
    link.symlink_to(one)
    tell(told, runtime, link)
    assert believed(call("state", "x", before=shell), tmp_path)
    link.unlink()
    link.symlink_to(tmp_path / "two.toml")
    assert not believed(call("state", "x", before=shell), tmp_path)


def test_a_configuration_where_none_was(
    call: Callable[..., Call], shell: tuple[str, ...], told: Path, runtime: Path, tmp_path: Path
) -> None:
    tell(told, runtime)
    assert not believed(call("state", "x", before=shell), tmp_path)


WHOSE: dict[str, Callable[[Path], object]] = {
    "runtime is a stranger's": lambda state: os.chown(state / "runtime", STRANGER, -1),
    "the directory is a stranger's": lambda state: os.chown(state, STRANGER, -1),
    "runtime is a link": lambda state: (state / "runtime").symlink_to((state / "runtime").rename(state / "x")),
    "the directory is a link": lambda state: state.symlink_to(state.rename(state.with_name("x"))),
}


@pytest.mark.parametrize("case", WHOSE)
def test_whose_word_is_not_taken(
    call: Callable[..., Call], shell: tuple[str, ...], told: Path, tmp_path: Path, case: str
) -> None:
    WHOSE[case](told)
    assert not believed(call("state", "x", before=shell), tmp_path)


def test_without_a_configuration_a_strangers_runtime_is_not_executed(
    call: Callable[..., Call], shell: tuple[str, ...], runtime: Path, tmp_path: Path
) -> None:
    os.chown(tmp_path / "st ate/runtime", STRANGER, -1)
    done = call("--version", before=shell)
    assert (done.rc, done.record) == (0, None)  # the real runc answered


def test_in_a_user_namespace_roots_word_is_taken(shell: tuple[str, ...]) -> None:
    """Where the host's root is nobody, as for an engine without root. No Python that could be asked is there."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        toml, low, launcher = top / "config.toml", top / "low", shutil.copy(LAUNCHER, top)
        toml.touch()
        low.write_text("#!/bin/sh\nexit 42\n")
        low.chmod(0o755)
        (top / "state").mkdir(0o755)
        tell(top / "state", low, toml)
        mapped = ["/usr/bin/setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
        mapped += ["/usr/bin/unshare", "--user", "--map-root-user", *shell]
        env = {"GPUSHIM_STATE": str(top / "state"), "GPUSHIM_CONFIG": str(toml)}
        assert subprocess.run([*mapped, launcher, "state"], cwd="/", env=env, check=False).returncode == 42


def test_words_that_are_gone_are_no_answer(
    call: Callable[..., Call], shell: tuple[str, ...], told: Path, tmp_path: Path
) -> None:
    (tmp_path / "cwd/config.json").write_text("{")
    assert call("create", "x", before=shell).record is not None
    (told / "triggers").unlink()
    done = call("create", "x", before=shell)
    assert (done.rc, done.record, done.stderr.count("\n")) == (14, None, 1)


def failing(path: Path, error: str) -> tuple[str, ...]:
    """Return what to put before a command so that every look at a path fails, but not to open it."""
    inject = f"inject=newfstatat,faccessat2,stat,access:error={error}"
    return ("/usr/bin/strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", "trace=%file", "-e", inject)


TROUBLE = ["EIO", "EACCES", "ESTALE"]


@pytest.mark.parametrize("error", TROUBLE)
@pytest.mark.parametrize("file", ["cwd/config.json", "st ate/triggers", "config.toml"])
def test_a_stat_that_fails_is_no_answer(
    call: Callable[..., Call], told: Path, tmp_path: Path, file: str, error: str
) -> None:
    """Of a container that asks by a word of the configuration; Python then says what is wrong with config.json."""
    (told / "triggers").write_text("A_WORD\n")
    (tmp_path / "cwd/config.json").write_text("A_WORD")
    path = tmp_path / file
    done = call("create", "-b", str(tmp_path / "cwd"), "x", before=failing(path, error))
    assert (done.rc, done.record) == (14, None), done


@pytest.mark.parametrize("refreshed", [False, True])
def test_a_configuration_that_cannot_be_looked_at_is_there(
    call: Callable[..., Call], told: Path, runtime: Path, tmp_path: Path, refreshed: bool
) -> None:
    """Where none was when the host was looked at, or nobody has ever looked."""
    (tmp_path / "cwd/config.json").write_text("A_WORD")
    tell(told, runtime)
    if not refreshed:
        shutil.rmtree(told)
    done = call("create", "x", before=failing(tmp_path / "config.toml", "EIO"))
    assert (done.rc, done.record) == (14, None), done


@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("name", ["config.toml", "folder/config.toml"])
def test_a_configuration_behind_a_link_to_nothing_is_there(
    call: Callable[..., Call], shell: tuple[str, ...], told: Path, runtime: Path, tmp_path: Path,
    refreshed: bool, name: str,
) -> None:  # fmt: skip
    (tmp_path / "config.toml").unlink()
    (tmp_path / name.partition("/")[0]).symlink_to("none")
    (tmp_path / "cwd/config.json").write_text("A_WORD")
    tell(told, runtime)
    if not refreshed:
        shutil.rmtree(told)
    done = call("create", "x", before=shell, env={"GPUSHIM_CONFIG": str(tmp_path / name)})
    assert (done.rc, done.record) == (14, None), done


LOGS: dict[str, Callable[[Path], object]] = {
    "link": lambda log: log.symlink_to("target"),
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
    "stranger's": lambda log: stranger(log),
    "in a stranger's directory": lambda log: os.chown(log.parent, NOBODY, NOBODY),
}
NOBODY = 65534


def stranger(log: Path) -> None:
    log.touch()
    os.chown(log, NOBODY, NOBODY)


@pytest.mark.parametrize("kind", LOGS)
def test_the_log_is_a_file_or_is_left_alone(
    call: Callable[..., Call], shell: tuple[str, ...], tmp_path: Path, kind: str
) -> None:
    log = tmp_path / "logs/log"
    log.parent.mkdir()
    LOGS[kind](log)
    (tmp_path / "runc").symlink_to(LAUNCHER)
    (tmp_path / "st ate/runtime").write_text(f"{tmp_path}/runc\n")
    done = call("--log", str(log), "state", "x", before=shell)
    assert (done.rc, done.stderr.count("\n")) == (126, 1)
    assert not (log.parent / "target").exists()
    assert not log.is_file() or log.read_bytes() == b""


ENCODINGS, COLLECTIONS = (
    subprocess.run(
        ["/usr/bin/python3", "-c", f"import {name}; print({name}.__path__[0])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for name in ("encodings", "collections")
)
DAMAGE: dict[str, str] = {
    "its standard library is gone": f"mount -t tmpfs none {ENCODINGS}",
    "it is a script of an interpreter that is gone": "mount --bind $0/script /usr/bin/python3",
    "it is empty": "mount --bind $0/empty /usr/bin/python3",
}


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_python_that_does_not_start_is_named_where_engines_look(
    call: Callable[..., Call], shell: tuple[str, ...], tmp_path: Path, case: str, form: str
) -> None:
    (tmp_path / "script").write_text("#!/none/python\n")
    (tmp_path / "empty").touch()
    for name in ("script", "empty"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "logs").mkdir()
    apart = ("/usr/bin/unshare", "--mount", "/bin/sh", "-ec", f'{DAMAGE[case]}; exec "$@"', str(tmp_path), *shell)
    done = call("--log", str(tmp_path / "logs/log"), "--log-format", form, "create", "-b", "A", "x", before=apart)
    assert (done.rc != 0, done.record) == (True, None)
    (line,) = (tmp_path / "logs/log").read_text().splitlines()
    said = json.loads(line)["msg"] if form == "json" else line
    words = "is empty" if case == "it is empty" else "does not start"
    for where in (said, done.stderr):
        assert f"this container may ask for a GPU, and /usr/bin/python3 {words}" in where
        assert ("(Debian: libpython3." in where) == (case == "its standard library is gone")


def test_a_python_that_starts_leaves_no_word_of_that(call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    done = call("--log", str(tmp_path / "logs/log"), "create", "-b", "nowhere", "x")
    assert (done.record is not None, [*(tmp_path / "logs").iterdir()]) == (True, [])


def test_a_part_of_python_that_is_gone_is_named(call: Callable[..., Call], told: Path, tmp_path: Path) -> None:
    """Where a create needs it only now and then."""
    (told / "runtime").unlink()
    apart = ("/usr/bin/unshare", "--mount", "/bin/sh", "-ec", f'mount -t tmpfs none {COLLECTIONS}; exec "$@"', "-")
    done = call("state", "x", before=apart)
    assert (done.rc, done.record, done.stderr.count("\n")) == (127, None, 1)
    assert "gpushim: /usr/bin/python3 or gpushim is damaged: " in done.stderr
