"""More of vulnerable.py: how a container could start, or go on, without the GPU that it asks for."""

from __future__ import annotations

from e2e import test_launcher_told, test_update
from e2e.views import CRUN
from e2e.vulnerable import Build

KEEPS, NODES = test_update.test_a_container_keeps_its_gpus, 'report["nodes"] =='

BUILDS = {
    "T-update applies the engine's device rules": Build(
        {"shim/gpushim/create/update.py": "without_devices = lambda data: data"},
        KEEPS,
        NODES,
        {"where": ("v1", CRUN), "way": "stdin"},
    ),
    "T-update of a file goes past": Build(
        {"shim/gpushim/launcher": (" | *' update '*", "")}, KEEPS, NODES, {"where": ("v1", CRUN), "way": "file"}
    ),
    "T-config a wrong one is taken for none": Build(
        {"shim/gpushim/decision/without_config.py": "_configured_words = lambda _: []"},
        test_launcher_told.test_who_may_ask_under_a_wrong_configuration_is_refused,
        "returncode == CONFIG",
    ),
}
