"""stub until merge"""

from __future__ import annotations

from typing import Any, NamedTuple


class Offered(NamedTuple):
    name: str
    uuid: str
    body: dict[str, Any]


def devices(snapshot: Any, exclude: Any = (), spread: bool = False) -> list[Offered]:
    out = []
    for g in snapshot["gpus"]:
        if g["uuid"] and not g["mig"]:
            n = g["uuid"].lower()
            out.append(
                Offered(
                    n,
                    g["uuid"],
                    {"name": n, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": g["uuid"]}}},
                )
            )
    for m in snapshot["mig"]:
        n = m["uuid"].lower()
        out.append(
            Offered(
                n,
                m["uuid"],
                {
                    "name": n,
                    "attributes": {
                        "type": {"string": "mig"},
                        "uuid": {"string": m["uuid"]},
                        "profile": {"string": m["profile"]},
                    },
                },
            )
        )
    return out


def slices(offered: Any, taints: Any) -> list[list[dict[str, Any]]]:
    rows = [{**o.body, **({"taints": taints[o.uuid]} if o.uuid in taints else {})} for o in offered]
    return [rows[i : i + 64] for i in range(0, len(rows), 64)] or [[]]
