"""Builds of the administrator's tools without a defence against strangers, and the test that finds each out."""

from __future__ import annotations

from e2e import test_strangers
from e2e.vulnerable import Build

ORIGIN, HOST_FILES, PROGRAMS = (
    f"shim/gpushim/{name}.py"
    for name in ("engines/processes/origin", "paths/host_files", "engines/processes/programs")
)
ANY_USER = """
_real = why_not
def why_not(folder, proc, uids, *rest):
    return _real(folder, proc, [os.geteuid()] * 3, *rest)
"""
ANY_GROUP = "_groups = lambda folder: []"
ANY_NAMESPACE = "_same = lambda *_: True"
ANY_PROGRAM = "_trusted = lambda *_: True"
ITS_OWN = """
_find = find
def find(name, engine=None, top=""):
    return engine.exe if engine else _find(name, engine, top)
"""
ANY_FILE = "trusted = lambda path: os.access(path, os.X_OK)"
OWNERS = "class trust:\n    trusted = staticmethod(lambda uid: True)"
MODES = "_others_write = lambda status: False"
UNTOUCHED = "done.returncode == 1"
CONTAINER = test_strangers.test_a_container_with_the_hosts_processes
PUT_THERE = test_strangers.test_programs_that_others_could_have_put_there
WHERE = test_strangers.test_settings_where_a_stranger_may_write

BUILDS = {
    "T-ENGINE takes any user's process": Build(
        {ORIGIN: ANY_USER}, test_strangers.test_the_real_program_that_nobody_runs, "+++ /etc/containerd"
    ),
    "T-ENGINE takes a process in another root": Build(
        {ORIGIN: ANY_NAMESPACE}, CONTAINER, "read_text()", {"name": "dockerd", "way": "pivot_root"}
    ),
    "T-ENGINE takes a container's process": Build(
        {ORIGIN: f"{ANY_NAMESPACE}\n{ANY_GROUP}"},
        CONTAINER,
        "read_text()",
        {"name": "dockerd", "way": "podman, root"},
    ),
    "T-ENGINE takes a program that others may replace": Build(
        {ORIGIN: ANY_PROGRAM}, test_strangers.test_a_program_that_others_may_replace, "read_text()"
    ),
    "T-ENGINE executes the process's program": Build(
        {PROGRAMS: ITS_OWN, ORIGIN: ANY_USER + ANY_PROGRAM},
        test_strangers.test_a_process_of_nobodys,
        "found.gone() == []",
        {"name": "renamed, with settings"},
    ),
    "T-ENGINE executes what others could have put there": Build(
        {PROGRAMS: ANY_FILE},
        PUT_THERE,
        "found.gone() == []",
        {"where": "/usr/local/sbin, with a group that may write"},
    ),
    "T-ENGINE executes what is on PATH": Build(
        {PROGRAMS: f'{ANY_FILE}\ndirectories = lambda: os.environ["PATH"].split(":")'},
        PUT_THERE,
        "found.gone() == []",
        {"where": "a stranger's, first on PATH"},
    ),
    "T-ENGINE connects to anybody's socket": Build(
        {
            HOST_FILES: """
def connect(path, seconds):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(seconds)
    client.connect(path)
    return client
"""
        },
        test_strangers.test_a_socket_of_a_strangers,
        "select.select",
    ),
    "T-ENGINE does not ask whose a directory is": Build(
        {HOST_FILES: OWNERS}, WHERE, UNTOUCHED, {"engine": "docker", "name": "behind the stranger's link"}
    ),
    "T-ENGINE writes where others may write": Build(
        {HOST_FILES: MODES}, WHERE, UNTOUCHED, {"engine": "docker", "name": "missing, in a world-writable directory"}
    ),
    "T-TERMINAL prints what others say": Build(
        {"shim/gpushim/ground/errors.py": "visible = lambda text, keep='': text"},
        test_strangers.test_what_others_write_on_a_terminal,
        "isprintable()",
    ),
}
