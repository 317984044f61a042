"""More of vulnerable.py: what containers of strangers may ask for, with one rule of it taken out."""

from __future__ import annotations

from e2e import test_grants, test_mps
from e2e.vulnerable import Build

TABLE, SURVEY = "shim/gpushim/authorization.py", "shim/gpushim/inventory/survey.py"
NO_PIPES = test_mps.test_without_a_daemon_that_can_be_trusted_there_is_no_directory
NOTHING = 'one.run().stdout == ""'
REFUSED = "done.returncode == 10"
OTHERS_MAY_WRITE = ("shim/gpushim/inventory/rooted.py", "        if status.st_mode & 0o022:", "        if False:")

BUILDS = {
    "T-GRANT annotations whatever the policy says": Build(
        [
            (
                TABLE,
                '"gpu":         ((ENV,),         (MOUNTS,),       (ANNOTATIONS,),      YES,    NO),',
                '"gpu": ((ENV,), (MOUNTS,), YES, YES, NO),',
            )
        ],
        test_grants.test_the_annotations_of_an_images_manifest,
        'stdout == ""',
        {"policy": test_grants.SWITCHES},
    ),
    "T-GRANT variables widen what a mount gave": Build(
        [(TABLE, '"gdrcopy":     ((ENV,), ', '"gdrcopy":     (YES, ')],
        test_grants.test_variables_widen_nothing_where_they_are_forbidden,
        "one.run(check=False).stdout ==",
        {"policy": test_grants.MULTI_TENANT},
    ),
    "T-GRANT names of others' devices": Build(
        [
            (
                "shim/gpushim/cdi/specs.py",
                "    return GpushimError(sentence, INVENTORY if troubles else REQUEST)",
                '    names = [device["name"] for _, _, spec in load(directories)[0] for device in spec["devices"]]\n'
                "    return GpushimError(sentence + _listed(names), INVENTORY if troubles else REQUEST)",
            )
        ],
        test_grants.test_others_devices_are_not_told,
        '"secret" not in',
    ),
    "T-GRANT others' devices by annotation": Build(
        [(TABLE, "(ANNOTATIONS, KIND),", "(ANNOTATIONS,),")],
        test_grants.test_others_devices_are_not_given,
        REFUSED,
        {"way": "annotation"},
    ),
    "T-GRANT others' devices by variable": Build(
        [(TABLE, "((ENV, KIND), ", "((ENV,), ")],
        test_grants.test_others_devices_are_not_given,
        REFUSED,
        {"way": "variable"},
    ),
    "T-GRANT names of the host's GPUs": Build(
        [
            (
                "shim/gpushim/selection.py",
                'inventory["policy"]["requests"]["list-devices-in-refusals"]',
                "True",
            )
        ],
        test_grants.test_neighbours_gpus_are_not_told,
        "which this host does not have",
    ),
    "T-GRANT power over a user namespace": Build(
        [
            (
                "shim/gpushim/request.py",
                ' and not _in_a_user_namespace(_member(spec, "linux", dict))',
                "",
            )
        ],
        test_grants.test_power_over_a_user_namespace_of_its_own,
        NOTHING,
    ),
    "T-MPS a user's directory in the stamp": Build(
        [(SURVEY, 'watched = mps["enabled"] and not rooted.mistrust(root, pipes)', "watched = True")],
        test_grants.test_a_users_directory_stops_nobody,
        "(ends, len(snapshots)) ==",
        {"mps": 'pipe-directory = "/tmp/nvidia-mps"'},
    ),
    "T-MPS a directory that containers can write": Build(
        [
            (
                "shim/gpushim/inventory/data_files.py",
                '{"path": pipes, "kind": "directory"}',
                '{"path": pipes, "kind": "socket"}',
            )
        ],
        test_mps.test_no_program_gets_into_the_directory,
        '"sh").exists()',
    ),
    "T-MPS a user's directory": Build(
        [("shim/gpushim/inventory/rooted.py", "        if not stamp.trusted(status.st_uid):", "        if False:")],
        NO_PIPES,
        NOTHING,
        {"trouble": "another user's"},
    ),
    "T-MPS everybody's directory": Build([OTHERS_MAY_WRITE], NO_PIPES, NOTHING, {"trouble": "everybody's"}),
    "T-MPS below everybody's directory": Build(
        [OTHERS_MAY_WRITE], NO_PIPES, NOTHING, {"trouble": "below a directory of everybody's"}
    ),
    "T-MPS by a variable": Build(
        [
            (SURVEY, 'pipes = mps["pipe-directory"] if mps["enabled"] else ""', 'pipes = mps["pipe-directory"]'),
            (
                "shim/gpushim/plan.py",
                "    if _devices(request) and not lacks:",
                "    if _devices(request) and request.mps:",
            ),
        ],
        test_mps.test_an_image_gets_no_directory_by_naming_it,
        NOTHING,
        {"env": [test_mps.PIPES]},
    ),
}
