"""The hook's work by a child of its create, with a real shell: who asks, who answers, and when the child ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from gpushim.create import ahead
from gpushim.oci.edits import SHELL, hook_args
from waiting import until

TOP = Path(__file__).parents[4]
HOOK = str(TOP / "bin/gpushim-hook")
# What a create does, as far as it matters here. Then it is the low-level runtime, which calls the hook when the test
# lets it, and ends when the test lets it, if it is slow.
CREATE = """
import json, posix, sys
top, hook, low, *words = sys.argv[1:]
sys.path.append(top)
from gpushim.create import ahead
if low != "none":
    ahead.start(json.loads(hook))
posix.execv("/usr/bin/python3", ["python3", "-IBS", "-c", LOW, low, *words])
"""
LOW = """
import json, posix, sys
low, go, started, shell, *args = sys.argv[1:]
posix.write(int(started), b"started")
posix.read(int(go), 1)
pid = posix.fork()
if pid:
    code = posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])
    if low == "slow":
        posix.write(int(started), b"hook ended")
        posix.read(int(go), 1)
        code = 0 if posix.waitpid(-1, posix.WNOHANG) == (0, 0) else 99  # the child's end
    posix._exit(code)
posix.execve(shell, args, {"PATH": "/usr/bin:/bin"})
"""
SHELLS = [shell for shell in ("/bin/dash", "/bin/bash", "/bin/busybox") if shutil.which(shell)]


class Create:
    """A create that has started a child; it waits until the test lets it call its hook."""

    def __init__(self, *argv: str, low: str = "", shell: str = SHELL, otherwise: str = HOOK, **options: Any) -> None:
        (reader, self.go), (self.started, writer) = os.pipe(), os.pipe()
        hook = ahead.through_shell({"path": HOOK, "args": ["gpushim-hook", *argv]})
        args = [otherwise if word == HOOK else word for word in hook["args"]]
        words = [str(TOP / "shim"), json.dumps(hook), low, str(reader), str(writer), shell, *args]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr") if name not in options}
        command = ["/usr/bin/python3", "-IBS", "-c", f"LOW = {LOW!r}{CREATE}", *words]
        self.process = subprocess.Popen(command, pass_fds=[reader, writer], **{**pipes, **options})
        for fd in (reader, writer):
            os.close(fd)
        assert os.read(self.started, 10) == b"started"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.child = int(children[0]) if children else 0

    def ask(self) -> tuple[int, str]:
        """Let the hook run; return its exit code and what it said."""
        os.write(self.go, b"x")
        said, errors = self.process.communicate(b"{}", timeout=20)
        assert not said
        return self.process.returncode, errors.decode()

    def ends(self) -> bool:
        """Wait until the child has ended, as far as it does within a while."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                if Path(f"/proc/{self.child}/stat").read_text().rpartition(") ")[2][0] == "Z":
                    return True
            except FileNotFoundError:
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for fd in (self.go, self.started):
            os.close(fd)
        assert self.ends()  # with its parent


Start = Callable[..., Create]


@pytest.fixture
def create() -> Iterator[Callable[..., Create]]:
    made: list[Create] = []

    def begin(*argv: str, **options: Any) -> Create:
        made.append(Create(*argv, **options))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def open_files(pid: int) -> set[str]:
    return {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}


def idle(pid: int) -> bool:
    """Whether a child waits for its hook."""
    return Path(f"/proc/{pid}/wchan").read_text().endswith("pipe_read")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_child_does_the_work_and_the_shell_repeats_it(create: Start, shell: str) -> None:
    one = create("nonsense", shell=shell)
    until(lambda: idle(one.child))
    code, text = one.ask()
    assert (code, text.count("\n")) == (2, 1)
    assert text.startswith("gpushim-hook: usage: gpushim-hook prestart|createRuntime [")
    assert one.ends()


@pytest.mark.parametrize("shell", SHELLS)
def test_gpushim_hook_is_not_started_then(create: Start, shell: str) -> None:
    one = create("poststop", shell=shell, otherwise="/bin/false")
    until(lambda: idle(one.child))
    assert one.ask() == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("low", ["none", ""])
def test_without_a_child_gpushim_hook_does_it(create: Start, low: str, shell: str) -> None:
    one = create("nonsense", low=low, shell=shell)
    if one.child:
        os.kill(one.child, signal.SIGKILL)
        assert one.ends()
    code, text = one.ask()
    assert (code, text.count("usage:"), text.count("\n")) == (2, 1, 1)


@pytest.mark.parametrize("shell", SHELLS)
def test_killed_at_work_the_hook_fails(create: Start, shell: str) -> None:
    one = create("prestart", "--rootfs", "/r", shell=shell)
    until(lambda: idle(one.child))
    os.write(one.go, b"x")
    until(lambda: "/dev/null" in open_files(one.child))  # opened when it has begun
    os.kill(one.child, signal.SIGKILL)
    assert one.process.communicate()[1] == b"gpushim-hook: the process that made the container ready was killed\n"
    assert one.process.returncode == 1


def test_a_child_of_the_low_level_runtimes_parent_is_not_asked(create: Start, tmp_path: Path) -> None:
    """That may be a containerd-shim, and its child a container's process, with any file as its 0."""
    name = "import time; open('/proc/self/comm', 'w').write('gpushim-hook'); print(flush=True); time.sleep(600)"
    (tmp_path / "file").write_text("a file of the host")
    with (tmp_path / "file").open() as file:
        other = subprocess.Popen([sys.executable, "-c", name], stdin=file, stdout=subprocess.PIPE)
    with other:
        assert other.stdout
        other.stdout.readline()
        try:
            code, text = create("nonsense", low="none").ask()
        finally:
            other.kill()
    assert (code, text.count("usage:")) == (2, 1)
    assert (tmp_path / "file").read_text() == "a file of the host"


def test_a_child_of_another_create_is_not_asked(create: Start) -> None:
    """Its low-level runtime has ended, so it is the subreaper's, which may be above this one's."""
    one = create("poststop")
    until(lambda: idle(one.child))
    os.kill(one.child, signal.SIGSTOP)
    one.process.kill()
    one.process.communicate()
    pipes = f"exec 3</proc/{one.child}/fd/1 4>/proc/{one.child}/fd/0"
    shell = f"{pipes}; echo $$ >&4; kill -CONT {one.child}; exec cat <&3"
    with subprocess.Popen(["/bin/sh", "-c", shell], stdout=subprocess.PIPE) as asking:
        assert one.ends()
        assert asking.communicate(timeout=20)[0] == b""


def test_the_child_ends_after_the_low_level_runtime(create: Start) -> None:
    """Crun's wait for a hook takes any child's end for the hook's, where the two come at once."""
    one = create("poststop", low="slow")
    os.write(one.go, b"x")
    assert os.read(one.started, 20) == b"hook ended"
    until(lambda: len(open_files(one.child)) == 1)  # the answer; nothing of the container's
    os.write(one.go, b"x")
    assert (one.process.wait(20), one.ends()) == (0, True)


def test_it_has_nothing_of_the_create_s(create: Start, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        one = create("poststop", stdin=file, stdout=file, stderr=file, cwd=tmp_path)
    until(lambda: idle(one.child))
    assert {name.partition("[")[0] for name in open_files(one.child)} == {"pipe:"}
    assert os.readlink(f"/proc/{one.child}/cwd") == "/"


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_without_a_standard_stream_there_is_no_child(create: Start, closed: int) -> None:
    assert not create("poststop", preexec_fn=lambda: os.close(closed)).child


def test_its_words_are_those_of_gpushim_hook() -> None:
    hook = ahead.through_shell({"path": HOOK, "args": ["gpushim-hook", "prestart", "--rootfs", "/r"], "timeout": 60})
    assert hook_args(hook) == ["prestart", "--rootfs", "/r"]
    assert (hook["path"], hook["timeout"]) == (SHELL, 60)
