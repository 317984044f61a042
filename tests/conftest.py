"""For every test: hypothesis without a wall-clock deadline, which a busy machine would miss; a process for hooks.

Files of tests lie where scratch.py says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

import scratch
from unit.gpuhook.sandbox import container

# Where pytest makes directories for tests; read when the first one is.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch.top()))

settings.register_profile("gpushim", deadline=None, print_blob=True)
settings.load_profile("gpushim")


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    """A process that stands for a container's first, in a mount namespace of its own."""
    with container() as made:
        yield made
