"""A host of NixOS' kind: no /usr/bin/python3, no ld.so.cache, the driver and Python below /nix/store.

It is a Debian whose Python has moved to a store with that of NixOS' owner and mode, beside a simulated driver in
NixOS' layout. Out of scope: NixOS' own files, its systemd and its engines.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import installed, packages, pages
from e2e.expect import probe, sees_exactly, sees_nothing
from e2e.installed import Machine

STORE = "/nix/store/q8xk3v7m-python3"
# Of the store: root's, and for the group of its builders, with the sticky bit.
MOVE = f"""
mkdir -p {STORE}/bin {STORE}/lib
for path in /usr/bin/python3.*; do mv $path {STORE}/bin; done
for path in /usr/lib/python3.*; do mv $path {STORE}/lib; done
mv /usr/bin/python3 {STORE}/bin
rm -rf /usr/lib/python3 /etc/ld.so.cache
chgrp 30000 /nix/store
chmod 1775 /nix/store
"""


@pytest.fixture
def nixos() -> Iterator[Machine]:
    with installed.machine("trixie", layout="nixos") as there:
        there.run(MOVE)
        yield there


def told(tmp_path: Path) -> str:
    """Return the link that systemd makes of the page's line, for the store of this machine."""
    text = (pages.TOP / "docs/symptoms.md").read_text()
    found = re.search(r'"(L\+ /usr/bin/python3 [^"]+)"', text)
    assert found
    (tmp_path / "nixos.conf").write_text(found[1].replace("${pkgs.python3}", STORE) + "\n")
    command = ["/usr/bin/systemd-tmpfiles", "--create", f"--root={tmp_path}", str(tmp_path / "nixos.conf")]
    subprocess.run(command, check=True)
    return str((tmp_path / "usr/bin/python3").readlink())


def test_one_link_is_all_that_is_missing(nixos: Machine, debian_tree: Path, tmp_path: Path) -> None:
    bundle, host = packages.bundle(nixos, containers=debian_tree), nixos.host
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2", args=probe(host, [0, 2]))
    assert "there is no /usr/bin/python3" in bundle.run(check=False).stderr
    nixos.run(f"ln -s {told(tmp_path)} /usr/bin/python3")
    assert nixos.run("readlink -f /usr/bin/python3").stdout.startswith(STORE)
    sees_exactly(bundle.run().stdout, host, [0, 2])
    sources = {mount["source"] for mount in bundle.spec["mounts"] if "libcuda" in mount["destination"]}
    assert sources
    assert all(source.startswith(f"{host.root}/nix/store/") for source in sources)
    sees_nothing(packages.bundle(nixos, containers=debian_tree).look(host, []))
    assert host.gpus[1].uuid in nixos.run("gpushim refresh; gpushim list").stdout
