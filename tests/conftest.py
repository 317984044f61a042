"""For every test: hypothesis without a wall-clock deadline, which a busy machine would miss; a process for hooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from unit.gpuhook.sandbox import container

settings.register_profile("gpushim", deadline=None, print_blob=True)
settings.load_profile("gpushim")


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    """A process that stands for a container's first, in a mount namespace of its own."""
    with container() as made:
        yield made
