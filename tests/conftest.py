"""For every test: hypothesis without a wall-clock deadline, which a busy machine would miss; a process for hooks.

Files of tests lie where scratch.py says, and no test makes links where this machine's own dockerd would find them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

import scratch
from gpushim.engines.docker import on_path
from unit.gpuhook.sandbox import container

# Where pytest makes directories for tests; read when the first one is.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch.top()))

settings.register_profile("gpushim", deadline=None, print_blob=True)
settings.load_profile("gpushim")


@pytest.fixture(autouse=True, scope="session")
def no_links_on_this_machine() -> Iterator[None]:
    """Let a test fail whose `configure docker` would make or remove links below /usr/local."""
    make = on_path._apply

    def guarded(link: on_path.Link) -> None:
        assert not link.path.startswith("/usr/local/"), f"a test touches {link.path}"
        make(link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_path, "_apply", guarded)
        yield


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    """A process that stands for a container's first, in a mount namespace of its own."""
    with container() as made:
        yield made
