"""Builds that lack what keeps mounts of the container from the host (vulnerable.py)."""

from __future__ import annotations

from e2e import shared_volumes, test_shared_volumes
from e2e.vulnerable import Build

PROPAGATION, LEAKS = "shim/gpushim/oci/propagation.py", "hook/gpuhook/inject/leaks.py"

BUILDS = {
    "T-SHARED the driver comes after the volumes": Build(
        {PROPAGATION: "arrange = lambda *_: None"},
        test_shared_volumes.test_the_escape,
        "not writable",
        {"shared_by": shared_volumes.PLACES[0]},
    ),
    "T-SHARED what was not asked for is taken for private": Build(
        {PROPAGATION: "can_propagate = lambda mount: 'rshared' in mount.get('options', [])"},
        test_shared_volumes.test_any_link,
        "not outcome.reached",
        {"links": "library directory", "option": None, "way": "shim"},
    ),
    "T-SHARED what the host has below the rootfs is not looked for": Build(
        {PROPAGATION: "_check_rootfs = lambda *_: None"},
        test_shared_volumes.test_a_mount_of_the_hosts_below_the_rootfs,
        "not outcome.reached",
        {"option": "shared", "propagation": "shared", "way": "shim"},
    ),
    "T-SHARED the hook does not look at the host": Build(
        {LEAKS: "_propagated = lambda *_: []"},
        test_shared_volumes.test_the_hook_takes_away_what_has_reached_the_host,
        "assert outcome.status",
    ),
}
