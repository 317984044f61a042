"""More of vulnerable.py: what is lent of the host's services, and what the hook alone mounts on and allows."""

from __future__ import annotations

from e2e import test_services, test_standalone
from e2e.vulnerable import Build

PLAN, SOCKETS = "shim/gpushim/decision/plan.py", "hook/gpuhook/inject/service_sockets.py"
ANOTHERS = test_services.test_another_services_socket_under_its_name
UDEV = test_services.test_gpudirect_storage_brings_no_socket_of_udevs
NOTHING, ALL = "services.reached(way) ==", "said =="

BUILDS = {
    "T-LENT the whole of udev's directory": Build(
        {"shim/gpushim/inventory/data_files.py": 'UDEV = "/run/udev"'}, UDEV, ALL, {"way": "shim", "nodes": True}
    ),
    "T-LENT a feature that is not there": Build(
        {
            PLAN: """
_real = driver_files
def driver_files(request, inventory):
    return _real(request, {**inventory, "features": dict.fromkeys(inventory["features"], ["/dev/x"])})
"""
        },
        UDEV,
        ALL,
        {"way": "shim", "nodes": False},
    ),
    "T-LENT config.json names what others can change": Build(
        {
            PLAN: """
_real_own = _own
def _own(request, inventory, bundle):
    edits, *others = _real_own(request, inventory, bundle)
    files = [file for file, _ in driver_files(request, inventory).values() if "persistenced" in file["path"]]
    return [*edits, *(Edit("mount", mount(file, inventory["driver"]["root"]), []) for file in files)], *others
"""
        },
        ANOTHERS,
        NOTHING,
        {"way": "shim", "trick": test_services.a_link, "when": "after it"},
    ),
    "T-LENT follows a link": Build(
        {SOCKETS: "PATH_ONLY = posix.O_PATH | posix.O_CLOEXEC\n_check = lambda *_: None"},
        ANOTHERS,
        NOTHING,
        {"way": "cdi", "trick": test_services.a_link, "when": "after it"},
    ),
    "T-LENT whosever socket it is": Build(
        {SOCKETS: "_check = lambda *_: None"},
        ANOTHERS,
        NOTHING,
        {"way": "hook", "trick": test_services.a_hard_link, "when": "before the list"},
    ),
    "T-LENT mounts by the name of what it has looked at": Build(
        {
            SOCKETS: """
_real = lend
def lend(root, source, path):
    from gpuhook.inject import mounts
    clone = mounts._clone
    def by_name(one):  # in a window that is long enough for somebody
        looked_at, left = one.source, 10000
        while left and roots.same(one.source, looked_at):
            one.source, left = posix.open(one.path, posix.O_PATH | posix.O_CLOEXEC), left - 1
            posix.dup2(one.source, 900)
            posix.close(one.source)
            one.source = 900
        return clone(one)
    mounts._clone = by_name
    _real(root, source, path)
"""
        },
        test_services.test_a_race_for_the_name,
        'reached(way).get(f"/{PERSISTENCED}", "socket")',
        {"way": "cdi"},
    ),
    "T-LENT a user's socket in the stamp": Build(
        {
            "shim/gpushim/inventory/survey.py": """
_real = _watched
def _watched(snapshot, *rest):
    path = rooted.inside(snapshot["driver"]["root"], "/run/nvidia-persistenced/socket")
    return [*_real(snapshot, *rest), path]
"""
        },
        ANOTHERS,
        "st_mtime_ns == listed",
        {"way": "shim", "trick": test_services.a_link, "when": "after it"},
    ),
    "T-CGROUP the engine's own": Build(
        {"hook/gpuhook/inject/devices.py": "is_shared = lambda cgroup: False"},
        test_standalone.test_a_container_without_a_cgroup,
        "exit code: 16",
    ),
    "T-KERNEL mounts on file systems of the kernel's": Build(
        {"hook/gpuhook/inject/mountpoints.py": "KERNELS = ()"},
        test_standalone.test_a_library_that_is_a_link_to_a_file_of_the_kernels,
        "a file system of the kernel's",
        {"where": "/proc/sys/kernel/core_pattern"},
    ),
}
