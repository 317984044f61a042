"""A command line as a process: its standard streams, and its end.

A failed write to standard output ends the process with one sentence, as in coreutils; a failed write to standard
error is ignored, for there is nobody to tell. Out of scope: commands.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from gpushim.cli import show
from gpushim.ground.errors import FAILED, READER_GONE, GpushimError
from gpushim.oci import bundle

if TYPE_CHECKING:
    from typing import NoReturn

    from _typeshed import ReadableBuffer

STREAMS = ("stdin", "stdout", "stderr")


class Program(click.Group):
    """Commands whose errors become one sentence, and whose exit code is the error's or the one of this class.

    An exception that is neither GpushimError nor OSError is a bug, whose traceback somebody may send us.
    """

    failure: int | None = None  # the exit code of every GpushimError; None for the error's own

    def main(self, *args: Any, **more: Any) -> Any:
        """Run as a process, and exit."""
        guard()
        try:
            return super().main(*args, **more)
        except GpushimError as error:
            shown = error
        except OSError as error:
            shown = _refused(error)
        show.say(f"{more.get('prog_name') or self.name}: {shown}", error=True)
        sys.exit(shown.exit_code if self.failure is None else self.failure)


def _refused(error: OSError) -> GpushimError:
    """Say what the kernel refuses where no other place does, such as in os.path.abspath."""
    if error.filename is None:
        try:
            bundle.working_directory()
        except GpushimError as gone:
            return gone
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return GpushimError(f"cannot go on: {where}{error.strerror or error}", FAILED)


def as_process(command: click.Command, words: list[str]) -> NoReturn:
    """Run a command that may be the first process of a container: exit 0, or say one sentence and exit with its code.

    The process ends without the interpreter's own end, at which grpc may wait for ever for a thread that is gone.

    Args:
        command: named as its program.
        words: its arguments.
    """
    if os.getpid() == 1:  # which the kernel spares signals that it does not handle; what runs then takes over
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    guard()
    try:
        code = _run(command, words)
    except Exception:  # noqa: BLE001 - as Python does, and at once
        sys.excepthook(*sys.exc_info())
        code = FAILED
    os._exit(code)


def _run(command: click.Command, words: list[str]) -> int:
    """Run a command; returns the exit code."""
    try:
        try:
            command.main(words, command.name)
        finally:
            sys.stdout.flush()
    except GpushimError as error:
        show.say(f"{command.name}: {error}", error=True)
        return error.exit_code
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))


def guard() -> None:
    """Make the standard streams safe to use: all are open, and failed writes are handled.

    A descriptor that is closed would be the next file that somebody opens, and get what is meant for people.
    """
    for fd, name in enumerate(STREAMS):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue  # replaced, for example by a test
        try:
            os.fstat(fd)
        except OSError:
            # Opened so that reads and writes fail as on a closed one; what goes to stderr is lost either way.
            os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_WRONLY)  # the lowest free number: fd
            os.set_inheritable(fd, True)
        if name == "stdin":
            sys.stdin = stream or open(fd, closefd=False)  # noqa: SIM115 - for the life of the process
            continue
        raw = (_Output if name == "stdout" else _Lossy)(fd, "w", closefd=False)
        encoding = stream.encoding if stream else "utf-8"
        made = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=True)
        setattr(sys, name, made)


class _Output(io.FileIO):
    """Standard output: what cannot be written is a GpushimError, or the end that a closed pipe brings."""

    def write(self, data: ReadableBuffer, /) -> int:
        written: int | None
        try:
            while (written := super().write(data)) is None:  # somebody has made it non-blocking
                select.select([], [self], [])
        except OSError as error:
            _end(self.fileno(), error)
        return written


def _end(fd: int, error: OSError) -> NoReturn:
    """End the process because of what cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), fd)  # what is left is not tried again
    if isinstance(error, BrokenPipeError):  # head(1) has seen enough
        raise SystemExit(READER_GONE)
    raise GpushimError(f"standard output cannot be written: {error.strerror}", FAILED) from None


class _Lossy(io.FileIO):
    """Standard error: what cannot be written is lost."""

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError:
            return size
