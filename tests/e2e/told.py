"""A node of a test's own, whose launcher has been told by a refresh, with a container that asks by a word of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from e2e.bundles import Bundle
from e2e.engines import SYSTEM_PATH
from e2e.hostile_places import Place
from e2e.witness import settings
from fakehost import Host

WORDS = '[requests]\nswarm-variables = ["{}"]\n'


class Node(NamedTuple):
    """A host of its own: a bundle that asks by a word that only its configuration knows, and where that is."""

    bundle: Bundle
    toml: Path
    state: Path

    def configure(self, word: str) -> None:
        """Let another word ask for GPUs."""
        self.toml.write_text(self.toml.read_text().partition("[requests]")[0] + WORDS.format(word))

    def gpus(self) -> int:
        """Run the container and count the GPUs in it."""
        self.bundle.ask("A_GPU=all", args=["/bin/ls", "/dev"])
        return sum(name.startswith("nvidia") and name[6:].isdigit() for name in self.bundle.run().stdout.split())

    def starts(self, *words: str) -> str:
        """Call the runtime and name the programs that are executed on the way to runc."""
        trace = self.state.with_name("trace")
        command = ["/usr/bin/strace", "-f", "-qq", "-e", "trace=execve", "-o", str(trace), str(self.bundle.runtime)]
        command += ["--root", str(self.state.with_name("containers")), *words]
        subprocess.run(command, env=self.bundle.env, check=False, timeout=60, stdin=subprocess.DEVNULL)
        return trace.read_text()


def node(place: Place, host: Host, tree: Path, work: Path) -> Node:
    """Make a node whose state is up to date.

    Args:
        place: with the checkout whose programs are called.
        host: the simulated host.
        tree: a root filesystem, to be copied.
        work: absent directory.
    """
    work.mkdir()
    env = settings(work, host.root) | {"PATH": SYSTEM_PATH}
    root = shutil.copytree(tree, work / "root", symlinks=True)
    bundle = Bundle(work / "bundle", root, env, runtime=place.top / "bin/gpushim-runtime")
    made = Node(bundle, work / "config.toml", work / "state")
    made.configure("A_GPU")
    subprocess.run([place.top / "bin/gpushim", "refresh"], env=env, check=True, capture_output=True)
    return made
