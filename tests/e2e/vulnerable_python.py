"""More of vulnerable.py: defences against what Python and its readers of text bring with them."""

from __future__ import annotations

from e2e import test_hostile_code, test_hostile_requests, test_syscalls
from e2e.vulnerable import BOUNDS, MARKER, MOUNTS, SPEC, Build

VARIABLES = test_hostile_code.test_the_engines_variables_lead_nowhere
KEYS = test_hostile_requests.test_keys_that_runtimes_read_in_several_ways

BUILDS = {
    "P-1 a hook's interpreter by its name": Build(
        {"bin/gpushim-hook": ("#!/usr/bin/python3 -IBS", "#!/usr/bin/env -S python3 -IBS")},
        VARIABLES,
        MARKER,
        way="hook",
    ),
    "P-2 looks in the working directory": Build(
        {"shim/gpushim/create/stub.py": ("sys.path.append(root)", 'sys.path[:0] = ["", root]')},
        test_hostile_code.test_the_working_directory_may_be_the_image,
        MARKER,
    ),
    "P-3 a hook with the caller's environment": Build(
        {
            "bin/gpushim-hook": ("#!/usr/bin/python3 -IBS", "#!/usr/bin/python3 -BS"),
            "hook/gpuhook/prestart.py": "isolate = dict",
        },
        VARIABLES,
        MARKER,
        way="hook",
    ),
    "P-3 a create with the caller's environment": Build(
        {"shim/gpushim/launcher": ("exec /usr/bin/python3 -IBS -X", "exec /usr/bin/python3 -BS -X")},
        VARIABLES,
        MARKER,
    ),
    "P-4 starts a program by its name": Build(
        {"shim/gpushim/launcher": ("exec /usr/bin/python3 -IBS -X", "exec python3 -IBS -X")}, VARIABLES, MARKER
    ),
    "P-5 imports inside": Build(
        {
            MOUNTS: """
_real = inside
def inside(process, work):
    def first():
        import email
        work()
    _real(process, first)
"""
        },
        test_syscalls.test_nothing_is_loaded_from_inside,
        "done.returncode == (16 if before else 0)",
        {"before": ()},
        "hook",
    ),
    "P-11 takes a key twice": Build(
        {"shim/gpushim/ground/fastjson.py": "import json\nloads = lambda data, *_, **__: json.loads(data)"},
        KEYS,
        "done.returncode in",
        {"name": "resources twice"},
    ),
    "P-11 takes no notice of a key in other letters": Build(
        {"shim/gpushim/oci/bundle.py": "check_spelling = lambda *_: None"},
        KEYS,
        "done.returncode in",
        {"name": "Process"},
    ),
    "P-13 writes what it compiles": Build(
        {"shim/gpushim/launcher": ("exec /usr/bin/python3 -IBS -X", "exec /usr/bin/python3 -IS -X")},
        test_hostile_code.test_nothing_is_written_beside_the_programs,
        "snapshot(str(trap.place.top)) == before",
    ),
    "P-14 loads any YAML": Build(
        {"shim/gpushim/cdi/yaml.py": "loads = lambda data: _library().unsafe_load(data)"},
        SPEC,
        '"owned").exists()',
        {"name": "YAML tag"},
    ),
    "P-14 takes any number of aliases": Build(
        {BOUNDS: "YAML_ALIASES = 1 << 30"}, SPEC, "done.returncode in", {"name": "YAML bomb"}
    ),
    "P-15 says what the image says": Build(
        {"shim/gpushim/ground/errors.py": "quote = lambda text: text"},
        test_hostile_requests.test_what_an_image_says_is_quoted,
        "said.is",
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "text": "\x1b[2J\nlevel=fatal msg=forged"},
    ),
}
