"""Builds with one of our defences taken away, and the test of hostile images that each must fail.

A defence without a build here may be one that no test notices. The old text of a change must be there once: whoever
changes that line is led here. Several changes mean that several defences stand behind one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import test_hostile, test_hostile_code, test_hostile_requests, test_races, test_syscalls
from e2e.hostile_places import checkout

WALK = (
    "hook/gpuhook/walk.py",
    "    stack = [posix.dup(root)]\n    try:\n        _descend(stack, path, follow, create_on, False, allow)",
    '    return posix.open(path.strip("/") or ".", posix.O_PATH, dir_fd=root)\n'
    "    stack = [posix.dup(root)]\n    try:\n        _descend(stack, path, follow, create_on, False, allow)",
)
MOUNT_CHECK = ("hook/gpuhook/rootfs.py", "            if mount not in own:", "            if not mount:")
READ_CHECK = (
    "hook/gpuhook/rootfs.py",
    "        if mount == self.mount:\n            return\n",
    "        return\n",
)
ROOT = 'posix.readlink(f"/proc/self/fd/{root.fd}")'
LINKS = test_hostile.test_an_image_of_links_harms_nothing
SPECS = test_hostile_requests.test_a_cdi_spec_that_cannot_be_trusted
CANARY = "snapshot(host.root, *self.watched) == before"
MARKER = "not marker.exists()"


@dataclass(frozen=True)
class Build:
    """A vulnerable build.

    Args:
        changes: (file, old text, new text).
        test: that must fail.
        fails: a part of the statement in which it does.
        arguments: of the test, beside its fixtures.
        way: who applies the plan, of hostile.WAYS.
    """

    changes: list[tuple[str, str, str]]
    test: Callable[..., None]
    fails: str
    arguments: dict[str, Any] = field(default_factory=dict)
    way: str = "shim"

    def make(self, top: Path) -> Path:
        """Make a checkout with the changes."""
        checkout(top)
        for file, old, new in self.changes:
            text = (top / file).read_text()
            assert text.count(old) == 1, f"{file} has this {text.count(old)} times, instead of once: {old}"
            (top / file).write_text(text.replace(old, new))
        return top


BUILDS = {
    "T-0132 mounts from the image": Build(
        [
            (
                "shim/gpushim/plan.py",
                '    edits.append(("env", (DEVICES, visible_devices(request, gpus, migs))))',
                '    compat = {"source": bundle["rootfs"] + "/usr/local/cuda/compat", "destination": "/opt/compat"}\n'
                '    edits.append(("mount", {**compat, "type": "bind", "options": FILE_OPTIONS}))\n'
                '    edits.append(("env", (DEVICES, visible_devices(request, gpus, migs))))',
            )
        ],
        LINKS,
        "line[3].startswith(own)",
        {"name": "T-0132 compat is up"},
    ),
    "T-0133 makes places by their paths": Build(
        [
            (
                "hook/gpuhook/live.py",
                "    host_path, fd, facts = source",
                f"    try:\n        posix.close(posix.open({ROOT} + path, posix.O_CREAT))\n    except OSError:\n"
                "        pass\n    host_path, fd, facts = source",
            )
        ],
        LINKS,
        CANARY,
        {"name": "T-0133 program"},
        "hook",
    ),
    "T-0134 leaves links to the kernel": Build(
        [WALK, MOUNT_CHECK], LINKS, CANARY, {"name": "T-0134 library directory"}
    ),
    "T-0134 writes on any mount": Build(
        [MOUNT_CHECK], test_hostile.test_what_the_user_mounts_is_not_written_to, CANARY, {"inside": "etc"}
    ),
    "T-0135 runs the host's ldconfig": Build(
        [
            (
                "hook/gpuhook/finish.py",
                "        exists = self.root.exists\n",
                '        words = ["ldconfig", "-r", posix.readlink(f"/proc/self/fd/{self.root.fd}")]\n'
                '        posix.waitpid(posix.posix_spawn("/sbin/ldconfig", words, {}), 0)\n'
                "        exists = self.root.exists\n",
            )
        ],
        test_syscalls.test_nothing_is_executed_and_nothing_below_the_rootfs_has_a_path,
        'count("execve") == 1',
        {"before": ()},
    ),
    "T-0136 runs the image's ldconfig": Build(
        [
            (
                "hook/gpuhook/finish.py",
                "        exists = self.root.exists\n",
                '        words = ["chroot", posix.readlink(f"/proc/self/fd/{self.root.fd}"), "/usr/sbin/ldconfig"]\n'
                '        posix.waitpid(posix.posix_spawn("/usr/sbin/chroot", words, {}), 0)\n'
                "        exists = self.root.exists\n",
            )
        ],
        test_hostile_code.test_programs_and_libraries_of_the_image,
        '"inside").exists()',
    ),
    "T-23266 a hook inside without an environment": Build(
        [
            ("shim/gpushim/plan.py", '"env": HOOK_ENV, "timeout"', '"timeout"'),
            (
                "shim/gpushim/create.py",
                "    if apply(edits, spec):",
                "    if apply(edits, spec):\n"
                '        spec["hooks"]["createContainer"] = spec["hooks"].pop("prestart")',
            ),
        ],
        test_hostile_code.test_no_variable_reaches_a_process_of_the_host,
        MARKER,
        {"value": "/proc/self/cwd/poc.so", "names": ["LD_PRELOAD"]},
    ),
    "T-23266 a hook without an environment": Build(
        [("shim/gpushim/plan.py", '"env": HOOK_ENV, "timeout"', '"timeout"')],
        test_hostile_code.test_each_hook_has_a_path_and_an_environment_of_its_own,
        "any(entry.startswith",
    ),
    "T-23266 a CDI hook without an environment": Build(
        [("shim/gpushim/cdi/resolve.py", '    hook["env"] = list(given.get("env") or HOOK_ENV)\n', "")],
        test_hostile_code.a_cdi_hook_gets_no_variable,
        '"owned").exists()',
    ),
    "T-23267 writes in place": Build(
        [
            (
                "hook/gpuhook/directory.py",
                "            new = TEMPORARY + posix.urandom(8).hex()",
                "            new = name",
            ),
            (
                "hook/gpuhook/directory.py",
                "posix.open(new, NEW, mode",
                "posix.open(new, posix.O_CREAT | posix.O_RDWR, mode",
            ),
        ],
        LINKS,
        CANARY,
        {"name": "T-23267 cache"},
    ),
    "T-23267 reads where links lead": Build(
        [WALK, READ_CHECK], LINKS, 'token.splitlines() == ["token"]', {"name": "T-23267 cache, up"}
    ),
    "T-24260 writes to the path of what it has found": Build(
        [
            (
                "hook/gpuhook/directory.py",
                '    __slots__ = ("cleared", "fd", "mount")',
                '    __slots__ = ("cleared", "fd", "mount", "path")',
            ),
            (
                "hook/gpuhook/directory.py",
                "        self.cleared = False",
                '        self.path = posix.readlink(f"/proc/self/fd/{fd}")\n        self.cleared = False',
            ),
            (
                "hook/gpuhook/directory.py",
                "posix.symlink(text, name, dir_fd=self.fd)",
                'posix.symlink(text, self.path + "/" + name)',
            ),
        ],
        test_races.test_a_race_won_in_every_window,
        CANARY,
        {"when": "use", "error": ""},
    ),
    "T-30465 mounts by path": Build(
        [
            ("hook/gpuhook/mounts.py", "if tree < 0 or not _move(tree, one.place):", "if True:"),
            (
                "hook/gpuhook/mounts.py",
                '_check(_mount_call(path, b"/proc/self/fd/%d" % place, None',
                '_check(_mount_call(path, posix.readlink(b"/proc/self/fd/%d" % place), None',
            ),
        ],
        test_syscalls.test_nothing_is_executed_and_nothing_below_the_rootfs_has_a_path,
        "not named",
        {"before": ()},
        "hook",
    ),
    "T-31133 covers with files of the image": Build(
        [
            (
                "shim/gpushim/plan.py",
                "{driver['params']}::/proc/driver/nvidia/params",
                "{bundle['rootfs']}/params::/proc/driver/nvidia/params",
            )
        ],
        test_hostile_code.test_each_hook_has_a_path_and_an_environment_of_its_own,
        "T-31133",
    ),
    "T-21626 leaves a file open": Build(
        [
            (
                "shim/gpushim/create.py",
                "        posix.execve(low, [low, *args], posix.environ)",
                '        posix.set_inheritable(posix.open("/", 0), True)\n'
                "        posix.execve(low, [low, *args], posix.environ)",
            )
        ],
        test_hostile_code.test_runc_gets_no_open_file_of_ours,
        '["fds"]',
    ),
    "T-CDI reads whatever its size": Build(
        [("shim/gpushim/bounds.py", "SPEC = 1 << 20", "SPEC = 1 << 30")],
        SPECS,
        "done.returncode in",
        {"name": "large"},
    ),
    "T-CDI takes a user's specs": Build(
        [("shim/gpushim/cdi/specs.py", "    if not stamp.trusted(status.st_uid):", "    if False:")],
        SPECS,
        "done.returncode in",
        {"name": "it is a user's"},
    ),
    "T-CDI takes specs that anyone may write": Build(
        [("shim/gpushim/cdi/specs.py", "    if status.st_mode & stamp.OTHERS_WRITE:", "    if False:")],
        test_hostile_requests.test_a_directory_of_cdi_specs_that_others_may_write,
        "done.returncode in",
        {"mode": 0o777},
    ),
}
