"""What right is missing at the API server, and the node as an owner of objects.

Out of scope: what is written (slices.py).
"""

from __future__ import annotations

from gpuplugin.cluster.cluster import METADATA, Api, ApiError, member


def lacking(error: ApiError, verb: str, resource: str) -> ApiError:
    """Add to an error which right is missing, if that is what it is.

    Args:
        error: what the API server answered.
        verb: what was wanted, as RBAC has it.
        resource: of what.
    """
    if error.status != 403:
        return error
    return ApiError(f"{error}; give the service account the right to {verb} {resource}", 403, error.about)


def node_uid(api: Api, node: str) -> str:
    """Return the uid of a node's object, with which the node's own objects go.

    Raises:
        ApiError: the API server does not say, or has no such node.
    """
    try:
        found = api.ask("GET", f"/api/v1/nodes/{node}", {}, accept=METADATA.format("PartialObjectMetadata"))
    except ApiError as error:
        if error.status == 404:
            raise ApiError(f"the API server knows no node {node}; set NODE_NAME to spec.nodeName") from None
        raise lacking(error, "get", "nodes") from None
    return str(member(member(found, "metadata"), "uid") or "")
