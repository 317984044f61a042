from __future__ import annotations

import errno
import os

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.inventory import failure


def launcher_facts(*errors: BaseException) -> BaseException:
    """The last of these errors, each raised because of the one before, which it does not name."""
    try:
        for error in errors[:-1]:
            raise error
    except type(errors[0]):
        try:
            raise errors[-1] from None
        except BaseException as last:
            return last
    return errors[-1]


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.EFBIG)),
        MemoryError(),
        RuntimeError("can't start new thread"),
        OSError("libnvidia-ml.so.1: failed to map segment from shared object"),
        launcher_facts(BlockingIOError(errno.EAGAIN, "x"), GpushimError("modprobe cannot be started")),
    ],
    ids=str,
)
def test_what_one_process_lacks(error: BaseException) -> None:
    assert "raise the limits of the process that creates this container" in str(failure.scarce(error))


@pytest.mark.parametrize(
    "error",
    [
        GpushimError("no NVIDIA driver is loaded"),
        OSError(errno.ENOSPC, "x"),
        OSError(errno.EACCES, "x"),
        ValueError(),
    ],
    ids=str,
)
def test_what_is_everybodys(error: BaseException) -> None:
    assert failure.scarce(error) is None


def test_a_note_that_tells_of_it() -> None:
    assert failure.among(["a GPU is missing", "NVML cannot be used (Insufficient Memory): none was asked"])
    assert failure.among(["a GPU is missing"]) is None
