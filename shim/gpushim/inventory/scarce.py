"""Whether a listing failed for want of memory, processes or files: what one process lacks, the next may have.

A create, and what it starts, has the limits of the tenant whose container it makes. Out of scope: a full disk, which
is full for all.
"""

from __future__ import annotations

import errno

from gpushim.ground.errors import INVENTORY, GpushimError

# EFBIG: the limit of a file's size (setrlimit(2)).
ERRNOS = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EFBIG}
THREAD = "can't start new thread"  # Python's RuntimeError for EAGAIN
# The loader's and NVML's own words for it: NVML_ERROR_MEMORY and NVML_ERROR_INSUFFICIENT_RESOURCES.
WORDS = ("annot allocate memory", "Insufficient Memory", "Insufficient Resources", "failed to map segment")


def lack(error: BaseException) -> GpushimError | None:
    """Return the refusal for an error that is, or comes of, such a want; None for any other.

    What an error comes of is seen in spite of `from None`.
    """
    cause: BaseException | None = error
    while cause is not None:
        if _is_want(cause):
            return GpushimError(
                f"gpushim refresh got too little memory, or too few processes or files ({cause or 'out of memory'}): "
                "raise the limits of who creates this container, or run gpushim refresh outside of them",
                INVENTORY,
            )
        cause = cause.__cause__ or cause.__context__
    return None


def among(notes: list[str]) -> GpushimError | None:
    """Return the refusal for a listing of whose notes one tells of such a want."""
    return next(filter(None, (lack(RuntimeError(note)) for note in notes)), None)


def _is_want(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno:
        return error.errno in ERRNOS
    text = str(error)
    return isinstance(error, MemoryError) or THREAD in text or any(words in text for words in WORDS)
