"""The hook as the process that runc starts: arguments, state, descriptors, environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpushim.create import precompile
from gpushim.ground.errors import for_engines
from unit import imports
from unit.gpuhook.sandbox import HOOK, TOP, as_root, picture

DRV = "/usr/lib/drv"
LIBS = ("--lib", f"libcuda.so.1={DRV}/libcuda.so.550")


def run(*argv: object, state: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(HOOK), *map(str, argv)], input=state, capture_output=True, env={}, timeout=60)


@pytest.fixture
def root(tmp_path: Path, pid: int) -> Path:
    (tmp_path / "root" / DRV[1:]).mkdir(parents=True)
    (tmp_path / "root/etc").mkdir()
    as_root(pid, tmp_path / "root")
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (b"", "no container's state"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "names no pid"),
        (b"{}", "names no pid"),
        (b'{"pid":0}', "names no pid"),
        (b'{"pid":-1}', "names no pid"),
        (b'{"pid":true}', "names no pid"),
        (b'{"pid":"1"}', "names no pid"),
        (b'{"pid":99999999999}', "names no pid"),
        (b'{"pid":2147483647}', "cannot be found"),
        (b'{"pid":1,"status":"running"}', "past the stages"),
        (b'{"pid":1,"status":["created"]}', "past the stages"),
        (b" " * (2 << 20), "more than 1048576 bytes"),
    ],
    ids=range(15),
)
def test_states_that_say_nothing(state: bytes, text: str) -> None:
    done = run("prestart", "--rootfs", "/nowhere", state=state)
    assert done.returncode in (14, 16)
    assert done.stderr.startswith(b"gpushim-hook: ")
    assert text in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_large_state(root: Path, pid: int) -> None:
    state = json.dumps({"annotations": {"a": "x" * 900_000}, "pid": pid}).encode()
    assert run("prestart", "--rootfs", root, *LIBS, state=state).returncode == 0


@pytest.mark.parametrize("status", ["creating", "created"])
@pytest.mark.parametrize("verb", ["prestart", "createRuntime"])
def test_runtimes_and_stages(root: Path, pid: int, verb: str, status: str) -> None:
    """crun says created and adds the rootfs to the state."""
    state = {"ociVersion": "1.0", "id": "x", "pid": pid, "root": "/elsewhere", "bundle": "/b", "status": status}
    assert run(verb, "--rootfs", root, *LIBS, state=json.dumps(state).encode()).returncode == 0
    assert (root / DRV[1:] / "libcuda.so.1").is_symlink()


def test_slow_state(root: Path, pid: int) -> None:
    with subprocess.Popen([str(HOOK), "prestart", "--rootfs", str(root), *LIBS], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for byte in b'{"pid": %d}' % pid:
            process.stdin.write(bytes([byte]))
            process.stdin.flush()
            time.sleep(0.02)
        process.stdin.close()
        assert process.wait(10) == 0
    assert (root / DRV[1:] / "libcuda.so.1").is_symlink()


def test_a_state_that_never_ends() -> None:
    code = "from gpuhook.prestart import read_state; read_state(0, 0.2)"
    path = f"import sys; sys.path[:0] = ['{TOP}/hook', '{TOP}/shim']; {code}"
    read, write = os.pipe()
    done = subprocess.run([sys.executable, "-IS", "-c", path], stdin=read, capture_output=True, timeout=20)
    os.close(read)
    os.close(write)
    assert b"did not come to its end on stdin in time" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-", "</dev/null 2>&-"])
def test_closed_descriptors(root: Path, closed: str) -> None:
    before = picture(root)
    command = f'exec "$0" prestart --rootfs "$1" {closed}'
    done = subprocess.run(["/bin/sh", "-c", command, str(HOOK), str(root)], capture_output=True)
    assert done.returncode == 16
    assert picture(root) == before


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["frobnicate"],
        ["createContainer"],
        ["prestart", "--rootfs"],
        ["prestart", "--rootfs", "relative"],
        ["prestart", "--rootfs", "/x", "--what", "/y"],
        ["prestart", "--rootfs", "/x", "--lib", "libcuda.so.1"],
        ["prestart", "--rootfs", "/x", "--lib", "=/usr/lib/x"],
        ["prestart", "--rootfs", "/x", "--lib", "a/b=/usr/lib/x"],
        ["prestart", "--rootfs", "/x", "--lib", "a=/usr/lib\n/etc/x"],
        ["prestart", "--rootfs", "/x", "--lib", "a=usr/lib/x"],
        ["prestart", "--rootfs", "/x", "--link", "a::/usr/lib/.."],
        ["prestart", "--rootfs", "/x", "--link", "a:/usr/lib/x"],
        ["prestart", "--rootfs", "/x", "--lib32", "a/b=/usr/lib/x"],
        ["prestart", "--lib32", "libcuda.so.1::/usr/lib/x"],
        ["prestart", "--rootfs", "/x", "--node-link", "a::/usr/lib/x"],
        ["prestart", "--rootfs", "/x", "--node-link", "a::/dev/../etc/x"],
        ["prestart", "--rootfs", "/x", "--node-link", "a=/dev/x"],
        ["prestart", "--gpu", "0"],
        ["prestart", "--gpu", "=0000:01:00.0"],
        ["prestart", "--gpu", "-1=0000:01:00.0"],
        ["prestart", "--gpu", "٣=0000:01:00.0"],
        ["prestart", "--gpu", "0=../../self"],
        ["prestart", "--gpu", "0=.."],
        ["prestart", "--gpu", "0=a\nb"],
        ["prestart", "--lib", "..=/a/b"],
        ["prestart", "--cover", "/a::/proc/../etc"],
        *(["prestart", "--profile-mask", text] for text in ("0x_1", " 0x1 ", "\u0661", "0x", "0x10000000000000000")),
        ["prestart", "--gpu", "99999999=x"],
        ["prestart", "--empty", "relative"],
    ],
)
def test_wrong_usage(argv: list[str]) -> None:
    done = run(*argv)
    assert done.returncode == 2
    assert done.stderr.startswith(b"gpushim-hook: ")
    assert done.stderr.count(b"\n") == 1


def bundle(top: Path, root: object) -> bytes:
    (top / "config.json").write_text(json.dumps({"root": root}))
    return str(top).encode()


@pytest.mark.parametrize("path", ["absolute", "relative", "link"])
@pytest.mark.parametrize("verb", ["prestart", "createRuntime"])
def test_the_rootfs_is_the_bundles(root: Path, pid: int, path: str, verb: str) -> None:
    (root.parent / "link").symlink_to("root")
    path = {"absolute": str(root), "relative": "root", "link": "./link"}[path]
    state = b'{"pid": %d, "bundle": "%s"}' % (pid, bundle(root.parent, {"path": path, "readonly": True}))
    done = run(verb, *LIBS, state=state)
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.readlink(root / DRV[1:] / "libcuda.so.1") == "libcuda.so.550"


@pytest.mark.parametrize(
    ("root_member", "code"),
    [
        (None, 14),
        ([], 14),
        ({}, 14),
        ({"path": 5}, 14),
        ({"path": ""}, 14),
        ({"path": "a\0b"}, 14),
        ({"path": "x"}, 16),
    ],
)
def test_a_bundle_without_a_rootfs(root: Path, pid: int, root_member: object, code: int) -> None:
    state = b'{"pid": %d, "bundle": "%s"}' % (pid, bundle(root.parent, root_member))
    before = picture(root)
    done = run("prestart", *LIBS, state=state)
    assert (done.returncode, done.stderr.count(b"\n")) == (code, 1)
    assert picture(root) == before


@pytest.mark.parametrize("path", ["/", "../../../../../../../..", "//."])
def test_the_hosts_own_root_as_the_bundles(root: Path, pid: int, path: str) -> None:
    log = root.parent / "log"
    state = b'{"pid": %d, "bundle": "%s"}' % (pid, bundle(root.parent, {"path": path}))
    done = run("prestart", "--log", log, "--link", "x::/gpushim-was-here", state=state)
    assert (done.returncode, "host's own root" in log.read_text()) == (0, True)
    assert not os.path.lexists("/gpushim-was-here")


@pytest.mark.parametrize(
    ("words", "state", "text"),
    [
        (("--rootfs", "/nowhere"), {}, "the rootfs /nowhere cannot be opened"),
        (("--rootfs", "/"), {"pid": 2**31 - 1}, "the container's process 2147483647 cannot be found"),
        ((), {"bundle": "relative"}, "names no absolute path of the bundle"),
        (("--rootfs", "/"), {"status": "running"}, "past the stages prestart and createRuntime"),
    ],
)
def test_a_refusal_is_in_the_log_too(
    tmp_path: Path, pid: int, words: tuple[str, ...], state: dict[str, object], text: str
) -> None:
    """crun hands on the exit code alone."""
    log = tmp_path / "log"
    done = run("prestart", *words, "--log", log, state=json.dumps({"pid": pid, **state}).encode())
    assert done.returncode in (14, 16)
    line = json.loads(log.read_text())
    assert done.stderr.decode() == f"gpushim-hook: {for_engines(line['msg'])}\n"
    assert line["level"] == "error"
    assert text in line["msg"]


def test_a_container_that_is_restored_has_all_already(root: Path, pid: int) -> None:
    """runc says "stopped" then, and the rootfs is the process's root."""
    done = run(
        "prestart", "--rootfs", "/nowhere", *LIBS, state=json.dumps({"pid": pid, "status": "stopped"}).encode()
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("verb", ["poststart", "poststop"])
def test_other_stages_have_nothing_to_do(verb: str) -> None:
    assert run(verb, state=b"{}").returncode == 0


@pytest.mark.parametrize("words", [["gpushim-hook", "poststop"], ["nvidia-cdi-hook", "made-up"], ["nvidia-cdi-hook"]])
def test_a_hook_with_nothing_to_do_reads_its_stdin_to_the_end(words: list[str]) -> None:
    """crun before 1.17 dies of SIGPIPE if it writes the state after its hook has ended."""
    command = [str(HOOK.with_name(words[0])), *words[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as hook:
        assert hook.stdin
        hook.stdin.write(b" " * (1 << 18))  # more than a pipe holds
        hook.stdin.close()
    assert hook.returncode == 0


def test_settings_count_only_without_arguments(root: Path, pid: int) -> None:
    """After the shim all is said in the arguments, and the environment may be anybody's."""
    env = {"GPUSHIM_CONFIG": "no path", "GPUSHIM_STATE": "no path"}
    argv = [str(HOOK), "prestart", "--rootfs", str(root), *LIBS]
    assert not subprocess.run(argv, input=b'{"pid": %d}' % pid, env=env).returncode


def test_python_without_isolation_is_refused() -> None:
    done = subprocess.run([sys.executable, "-S", str(HOOK), "poststop"], capture_output=True, env={})
    assert (done.returncode, b"start gpushim-hook itself" in done.stderr) == (1, True)


@pytest.mark.parametrize("log", ["/nowhere/log", "/dev/full", "/etc", "FIFO"])
def test_a_log_that_cannot_be_written(root: Path, pid: int, log: str) -> None:
    os.mkfifo(root.parent / "fifo")
    (root / "etc/ld.so.cache").write_bytes(b"")
    (root / DRV[1:] / "libcuda.so.1").mkdir()
    path = log.replace("FIFO", str(root.parent / "fifo"))
    done = run("prestart", "--rootfs", root, "--log", path, *LIBS, state=b'{"pid": %d}' % pid)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("way", ["absolute", "relative", "twice"])
def test_started_through_a_link(tmp_path: Path, way: str) -> None:
    (tmp_path / "one").symlink_to(HOOK if way != "relative" else os.path.relpath(HOOK, tmp_path))
    (tmp_path / "two").symlink_to("one")
    done = subprocess.run(["./two" if way == "twice" else "./one", "poststop"], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_directory_as_stdin(tmp_path: Path, root: Path) -> None:
    """Python does not start then; what matters is that nothing is done, and that it shows."""
    stdin = os.open(tmp_path, os.O_RDONLY)
    words = [str(HOOK), "prestart", "--rootfs", str(root), *LIBS]
    done = subprocess.run(words, stdin=stdin, capture_output=True, env={})
    os.close(stdin)
    assert done.returncode == 1
    assert b"is a directory" in done.stderr


def test_the_hook_alone_imports_nothing_of_the_runtimes_other_verbs() -> None:
    found = imports.imported(f"sys.path += ['{TOP}/hook', '{TOP}/shim']; import gpuhook.standalone")
    assert "gpushim.oci.edits" in found
    assert {
        "gpushim.create.update",
        "gpushim.decision.without_config",
        "gpushim.config.policy",
        "json",
        "os",
        "re",
    }.isdisjoint(found)


def test_it_imports_no_more_than_it_needs() -> None:
    found = imports.imported(f"sys.path += ['{TOP}/hook', '{TOP}/shim']; import gpuhook.prestart")
    known = {name.rstrip(".") for name in precompile.HOOK.split()} - {
        "gpuhook.inject.cover"
    }  # that one is for most containers
    assert not imports.dearer(found, known | {"_json", "__future__"})
    assert set(found) == known | {"_json", "__future__"}
