"""More of vulnerable.py: what containers of strangers may ask for, with one rule of it taken out."""

from __future__ import annotations

from e2e import test_grants, test_hostile_container, test_mps
from e2e.vulnerable import SPECS, Build

AUTHORIZATION, SURVEY = "shim/gpushim/oci/authorization.py", "shim/gpushim/inventory/survey.py"
NO_PIPES = test_mps.test_without_a_daemon_that_can_be_trusted_there_is_no_directory
NOTHING = 'one.run().stdout == ""'
REFUSED = "done.returncode == 10"
ANYBODY = {"shim/gpushim/paths/rooted.py": "mistrust = lambda root, path: ''"}

BUILDS = {
    "T-GRANT annotations whatever the policy says": Build(
        {AUTHORIZATION: 'TABLE["gpu"]["annotation"] = YES'},
        test_grants.test_the_annotations_of_an_images_manifest,
        'stdout == ""',
        {"policy": test_grants.SWITCHES},
    ),
    "T-GRANT variables widen what a mount gave": Build(
        {AUTHORIZATION: 'TABLE["gdrcopy"]["variable"] = YES'},
        test_grants.test_variables_widen_nothing_where_they_are_forbidden,
        "one.run(check=False).stdout ==",
        {"policy": test_grants.MULTI_TENANT},
    ),
    "T-GRANT names of others' devices": Build(
        {
            SPECS: """
_real = _unknown
def _unknown(name, troubles, directories):
    names = [device["name"] for _, _, spec in load(directories)[0] for device in spec["devices"]]
    return GpushimError(f"{_real(name, troubles, directories)}; {_join(names)}", REQUEST)
"""
        },
        test_grants.test_others_devices_are_not_told,
        '"secret" not in',
    ),
    "T-GRANT others' devices by annotation": Build(
        {AUTHORIZATION: 'TABLE["foreign-cdi"]["annotation"] = (ANNOTATIONS,)'},
        test_grants.test_others_devices_are_not_given,
        REFUSED,
        {"way": "annotation"},
    ),
    "T-GRANT others' devices by variable": Build(
        {AUTHORIZATION: 'TABLE["foreign-cdi"]["variable"] = (ENV,)'},
        test_grants.test_others_devices_are_not_given,
        REFUSED,
        {"way": "variable"},
    ),
    "T-GRANT names of the host's GPUs": Build(
        {"shim/gpushim/oci/selection.py": "disclosed = lambda inventory, devices, otherwise='': devices"},
        test_grants.test_neighbours_gpus_are_not_told,
        "which this host does not have",
    ),
    "T-GRANT power over a user namespace": Build(
        {AUTHORIZATION: "_in_a_user_namespace = lambda linux: False"},
        test_grants.test_power_over_a_user_namespace_of_its_own,
        NOTHING,
    ),
    "T-MPS a user's directory in the stamp": Build(
        {SURVEY: "_mps_control = lambda root, mps: [rooted.inside(root, mps['pipe-directory']) + '/control']"},
        test_grants.test_a_users_directory_stops_nobody,
        "(ends, len(snapshots)) ==",
        {"mps": 'pipe-directory = "/tmp/nvidia-mps"'},
    ),
    "T-OWNER sockets are mounted writable": Build(
        {"hook/gpuhook/inject/service_sockets.py": "OPTIONS = OPTIONS[1:]"},
        test_hostile_container.test_owner_and_mode_of_what_is_the_hosts,
        "after == before",
    ),
    "T-OWNER nodes are mounted writable": Build(
        {"shim/gpushim/oci/edits.py": "NODE_OPTIONS = NODE_OPTIONS[1:]"},
        test_hostile_container.test_owner_and_mode_of_what_is_the_hosts,
        "after == before",
        way="hook",
    ),
    "T-MPS a directory that containers can write": Build(
        {
            "shim/gpushim/decision/plan.py": """
_real = mount
def mount(file, root):
    found = _real(file, root)
    found["options"] = found["options"][file["kind"] == "directory" :]
    return found
"""
        },
        test_mps.test_no_program_gets_into_the_directory,
        '"sh").exists()',
    ),
    "T-MPS a user's directory": Build(ANYBODY, NO_PIPES, NOTHING, {"trouble": "another user's"}),
    "T-MPS everybody's directory": Build(ANYBODY, NO_PIPES, NOTHING, {"trouble": "everybody's"}),
    "T-MPS below everybody's directory": Build(
        ANYBODY, NO_PIPES, NOTHING, {"trouble": "below a directory of everybody's"}
    ),
    "T-MPS by a variable": Build(
        {
            SURVEY: """
_real = _add_nodes_and_files
def _add_nodes_and_files(snapshot, *rest):
    mps = {**snapshot["policy"]["mps"], "enabled": True}
    with_mps = {**snapshot, "policy": {**snapshot["policy"], "mps": mps}}
    _real(with_mps, *rest)
    snapshot.update(with_mps, policy=snapshot["policy"])
""",
            "shim/gpushim/decision/plan.py": """
_real = driver_files
def driver_files(request, inventory):
    policy = {**inventory["policy"], "mps": {**inventory["policy"]["mps"], "enabled": bool(request.mps)}}
    return _real(request, {**inventory, "policy": policy})
""",
        },
        test_mps.test_an_image_gets_no_directory_by_naming_it,
        NOTHING,
        {"env": [test_mps.PIPES]},
    ),
}
