"""Find a container's bundle and rootfs, for a hook that was not told: a CDI spec cannot name them.

Out of scope: what else config.json says (gpushim.oci.request). Hot path: builtin modules only.
"""

from __future__ import annotations

from gpushim.ground import fastjson
from gpushim.ground.errors import BUNDLE, GpushimError
from gpushim.oci import bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def bundle_of(state: dict[str, Any]) -> str:
    """Return the bundle's directory: what the state says ("bundlePath" before runtime-spec 1.0), or the working one.

    Raises:
        GpushimError: it is not an absolute path, or is gone.
    """
    path = _path(state.get("bundle") or state.get("bundlePath") or bundle.working_directory())
    if not path.startswith("/"):
        raise GpushimError("the container's state on stdin names no absolute path of the bundle", BUNDLE)
    return path


def rootfs_of(state: dict[str, Any]) -> str:
    """Return the absolute path of a container's rootfs: root.path of config.json, which may count from the bundle.

    Args:
        state: what the runtime wrote on stdin (OCI runtime-spec, State).

    Raises:
        GpushimError: config.json cannot be read, or names none.
    """
    directory = bundle_of(state)
    path = directory + "/config.json"
    spec = fastjson.loads(bundle.read(path)[0], path)
    root = spec.get("root") if isinstance(spec, dict) else None
    rootfs = _path(root.get("path") if isinstance(root, dict) else None)
    if not rootfs:
        raise GpushimError(f"{path}: root.path is not the path of a rootfs", BUNDLE)
    return rootfs if rootfs.startswith("/") else f"{directory}/{rootfs}"


def _path(value: object) -> str:
    """Return a value of a JSON document if the kernel can take it for a path, else ""; half a pair has no bytes."""
    try:
        return value if isinstance(value, str) and b"\0" not in value.encode("utf-8", "surrogateescape") else ""
    except UnicodeEncodeError:
        return ""
