"""Builds of the administrator's tools without a defence against strangers, and the test that finds each out."""

from __future__ import annotations

from e2e import test_strangers
from e2e.vulnerable import Build

GENUINE, PLACES, PROGRAMS = (f"shim/gpushim/engines/{name}.py" for name in ("genuine", "places", "programs"))
ANY_USER = (GENUINE, "    if uids != [me] * 3:", "    if not uids:")
ANY_GROUP = (GENUINE, "    if foreign:", "    if not proc:")
ANY_NAMESPACE = (GENUINE, "    if moved and not snapped and not rootless:", "    if moved and not root:")
ANY_PROGRAM = (GENUINE, 'return "" if _trusted(folder, exe, root) else', 'return "" if exe else')
ITS_OWN = (
    PROGRAMS,
    "    for path in _candidates(name, top):",
    "    if engine:\n        return engine.exe\n    for path in _candidates(name, top):",
)
OWNERS = (PLACES, "    if not stamp.trusted(status.st_uid):\n        where", "    if not path:\n        where")
MODES = (PLACES, "    if not _others_write(status):", "    if path:")
UNTOUCHED = "done.returncode == 1"
CONTAINER = test_strangers.test_a_container_with_the_hosts_processes
PUT_THERE = test_strangers.test_programs_that_others_could_have_put_there
WHERE = test_strangers.test_settings_where_a_stranger_may_write

BUILDS = {
    "T-ENGINE takes any user's process": Build(
        [ANY_USER], test_strangers.test_the_real_program_that_nobody_runs, "+++ /etc/containerd"
    ),
    "T-ENGINE takes a process in another root": Build(
        [ANY_NAMESPACE], CONTAINER, "read_text()", {"name": "dockerd", "way": "pivot_root"}
    ),
    "T-ENGINE takes a container's process": Build(
        [ANY_NAMESPACE, ANY_GROUP], CONTAINER, "read_text()", {"name": "dockerd", "way": "podman, root"}
    ),
    "T-ENGINE takes a program that others may replace": Build(
        [ANY_PROGRAM], test_strangers.test_a_program_that_others_may_replace, "read_text()"
    ),
    "T-ENGINE executes the process's program": Build(
        [ITS_OWN, ANY_USER, ANY_PROGRAM],
        test_strangers.test_a_process_of_nobodys,
        "found.gone() == []",
        {"name": "renamed, with settings"},
    ),
    "T-ENGINE executes what others could have put there": Build(
        [(PROGRAMS, "if its and trusted(path):", "if its and os.access(path, os.X_OK):")],
        PUT_THERE,
        "found.gone() == []",
        {"where": "/usr/local/sbin, with a group that may write"},
    ),
    "T-ENGINE executes what is on PATH": Build(
        [
            (PROGRAMS, '.split(":") if os.geteuid() else []', '.split(":")'),
            (PROGRAMS, "if its and trusted(path):", "if its and os.access(path, os.X_OK):"),
            (PROGRAMS, "dict.fromkeys((*DIRECTORIES, *(", "dict.fromkeys((*own, *("),
        ],
        PUT_THERE,
        "found.gone() == []",
        {"where": "a stranger's, first on PATH"},
    ),
    "T-ENGINE connects to anybody's socket": Build(
        [
            (
                PLACES,
                "        with place(path) as found:\n            check_file(path, found.status())\n            cl",
                "        client.connect(path)\n        with place(path) as found:\n            cl",
            )
        ],
        test_strangers.test_a_socket_of_a_strangers,
        "select.select",
    ),
    "T-ENGINE does not ask whose a directory is": Build(
        [OWNERS], WHERE, UNTOUCHED, {"engine": "docker", "name": "behind the stranger's link"}
    ),
    "T-ENGINE writes where others may write": Build(
        [MODES], WHERE, UNTOUCHED, {"engine": "docker", "name": "missing, in a world-writable directory"}
    ),
    "T-TERMINAL prints what others say": Build(
        [("shim/gpushim/errors.py", "each if each.isprintable() or each in keep else", "each if each else")],
        test_strangers.test_what_others_write_on_a_terminal,
        "isprintable()",
    ),
}
