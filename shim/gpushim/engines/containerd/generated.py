"""containerd's settings where a service writes them again at each start: k3s and rke2, k0s, and MicroK8s.

k3s and rke2 make config.toml from a Go template: config-v3.toml.tmpl for version 3, config.toml.tmpl for version 2,
or a built-in one, for which `{{ template "base" . }}` stands (since k3s 1.24.17, 1.25.13, 1.26.8, 1.27.5; see its
documentation under "Configuring containerd"). What goes into a template is text at its end, which counts where they
have no runtime of that name by themselves.
k0s makes them of the files in a directory beside its own, which it imports, or before its containerd was 2.0 merged
into one in /run (since 1.27.1; see its documentation under "k0s managed dynamic runtime configuration").
MicroK8s fills in the variables of containerd-template.toml, which is TOML itself.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from typing import Any

from gpushim.engines.settings import files, records
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.text import Toml, decoded
from gpushim.ground.errors import GpushimError

BASE = '{{ template "base" . }}\n'
BEGIN = "# gpushim: `gpushim configure containerd --remove` takes this away, down to the end mark"
END = "# gpushim: end"
MICROK8S = "containerd-template.toml"
K0S = (
    "# k0s_managed=true"  # its first line; without it k0s leaves the file alone. Before 1.30 an empty one comes first
)
_BLOCK = re.compile(rf"(?:\r?\n)?{re.escape(BEGIN)}\r?\n(.*?){re.escape(END)}[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_GENERATED = "/agent/etc/containerd/config.toml"


def of(config: str, version: int) -> str:
    """Return the template of a generated file of k3s or rke2, by its path and version; "" for other files."""
    if not config.endswith(_GENERATED):
        return ""
    return posixpath.join(posixpath.dirname(config), "config-v3.toml.tmpl" if version >= 3 else "config.toml.tmpl")


def source(config: str, place: str) -> str:
    """Return the file to edit: of settings that MicroK8s generates the template, else `config` itself.

    `config` is their path within containerd's root, `place` as this process opens it.
    """
    if posixpath.basename(config) == "containerd.toml" and os.path.exists(
        posixpath.join(posixpath.dirname(place), MICROK8S)
    ):
        return posixpath.join(posixpath.dirname(config), MICROK8S)
    return config


def dropped_in(config: str, place: str) -> str:
    """Return the file that k0s takes gpushim's settings from; "" if it does not make these.

    Args:
        config: their path within containerd's root.
        place: the same as this process opens it.
    """
    if K0S not in decoded(files.read(place) or b"", place).splitlines()[:2]:
        return ""
    return posixpath.join(config.removesuffix(".toml") + ".d", "99-gpushim.toml")


def at_each_start(config: str, place: str) -> bool:
    """Say whether a service writes settings before it starts containerd; arguments as of `dropped_in`."""
    return bool(of(config, 2) or dropped_in(config, place))


def service(config: str) -> str:
    """Return the name of the service that generates a file, for messages."""
    return "rke2" if "/rke2/" in config else "k3s"


def without_ours(text: str) -> str:
    """Return a template, or what is made of it, without gpushim's runtime."""
    return _BLOCK.sub("", text)


def has(path: str, keys: tuple[str, ...]) -> bool:
    """Return whether a template has gpushim's runtime of this table."""
    text = decoded(files.read(path) or b"", path)
    return any(f"runtimes.{keys[-1]}" in block.replace('"', "") for block in _BLOCK.findall(text))


def put(path: str, keys: tuple[str, ...], entry: dict[str, Any], options: dict[str, Any]) -> Change:
    """Work out a template with a runtime at its end.

    Args:
        path: of the template, which need not exist.
        keys: of the runtime's table.
        entry: members of the table.
        options: members of its table "options".

    Raises:
        GpushimError: the template has a runtime of this name that is not gpushim's.
    """
    base = take_out(path)
    old = base.old
    text = decoded(old, path) if old is not None else BASE
    others = without_ours(text)
    name = keys[-1]
    if re.search(
        rf"""(?m)^[^#\n]*runtimes\.(?:"{re.escape(name)}"|'{re.escape(name)}'|{re.escape(name)})[].]""", others
    ):
        raise GpushimError(
            f"{path} has a runtime {name} already; choose another --runtime-name, or remove that one first"
        )
    block = Toml("").put(keys, {**entry, "options": options}).text
    # k3s names what it finds on its PATH by itself, maybe later; a table that stands twice would end containerd.
    alone = f"{{{{ if not (index .ExtraRuntimes {json.dumps(name)}).BinaryName }}}}"
    block = f"\n{BEGIN}\n{alone}\n{block}{{{{ end }}}}\n{END}\n"
    found = _BLOCK.search(text)
    if found:
        new = text[: found.start()] + block + text[found.end() :]
    else:
        new = text + ("" if text.endswith("\n") or not text else "\n") + block
    return Change(path, old, new.encode(), before=base.new, lost=base.lost)


def take_out(path: str) -> Change:
    """Work out a template without gpushim's runtime; one that gpushim made goes if only the built-in one is left.

    Raises:
        GpushimError: one of the marks around the runtime is missing.
    """
    old = files.read(path)
    if old is None:
        return Change(path, None, None)
    before, after, text = records.before(path), records.after(path), decoded(old, path)
    blocks = [match[1] for match in _BLOCK.finditer(text)]
    if not len(blocks) == text.count(BEGIN) == text.count(END) or any(BEGIN in block for block in blocks):
        raise GpushimError(f"{path} lacks one of the two marks around gpushim's runtime; remove the runtime by hand")
    new = without_ours(text).encode()
    made = _BLOCK.search((after or b"").decode("utf-8", "replace"))
    lost = () if all(made and made[1] == block for block in blocks) else ("settings between gpushim's marks",)
    if before is None and after is not None and blocks and new.decode() == BASE:
        return Change(path, old, None, lost=lost)
    if old == after and before is not None and before.split() == new.split():
        new = before  # a missing newline at its end
    return Change(path, old, new, lost=lost)
