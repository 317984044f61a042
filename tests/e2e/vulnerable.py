"""Builds with one of our defences taken away, and the test of hostile images that each must fail.

A defence without a build here may be one that no test notices. What is taken away is a name of a module, set again
where the module ends; text is replaced only in scripts, which have no names. Several changes mean that several
defences stand behind one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import test_hostile, test_hostile_code, test_hostile_requests, test_races, test_syscalls
from e2e.hostile_places import checkout

CREATE, EDITS, FINISH, MOUNTS, ROOTFS, WALK, SPECS = (
    "shim/gpushim/create/create.py",
    "shim/gpushim/oci/edits.py",
    "hook/gpuhook/loader/finish.py",
    "hook/gpuhook/inject/mounts.py",
    "shim/gpushim/paths/rootfs.py",
    "shim/gpushim/paths/walk.py",
    "shim/gpushim/cdi/specs.py",
)
BOUNDS, DIRECTORY = "shim/gpushim/ground/bounds.py", "shim/gpushim/paths/directory.py"
FOLLOWS = "walk = lambda root, path, *_, **__: posix.open(path.strip('/') or '.', posix.O_PATH, dir_fd=root)"
ANY_MOUNT_READ = "Rootfs._admit = lambda *_: None"
ANY_MOUNT_WRITTEN = """
def _directory(self, path, create=False, also=()):
    fd = walk(self.fd, path + "/", missing=make_on((self.mount, *also)) if create else None, allow=self.way(also))
    return Directory(fd, mount_id(fd))
Rootfs.directory = _directory
"""
BY_PATH = """
_real = _bind
def _bind(root, path, *rest):
    try:
        posix.close(posix.open(posix.readlink(f"/proc/self/fd/{root.fd}") + path, posix.O_CREAT))
    except OSError:
        pass
    return _real(root, path, *rest)
"""
# What runs in the hook before it looks at the loader's files; `root` is the rootfs by its path.
BEFORE_FINISH = """
_real = Work.configure
def _configure(self, *args, **kwargs):
    root = posix.readlink(f"/proc/self/fd/{self.root.fd}")
    posix.waitpid(posix.posix_spawn(%s, {}), 0)
    return _real(self, *args, **kwargs)
Work.configure = _configure
"""
# What is done to a spec behind all of ours; `hook` is ours, and `root` the rootfs.
AFTER_EDITS = """
_real = apply
def apply(edits, spec):
    done, root = _real(edits, spec), spec["root"]["path"]
    for hook in spec["hooks"]["prestart"]:
        %s
    return done
"""
LINKS = test_hostile.test_an_image_of_links_harms_nothing
SPEC = test_hostile_requests.test_a_cdi_spec_that_cannot_be_trusted
CANARY = "snapshot(host.root, *self.watched) == before"
MARKER = "not marker.exists()"


@dataclass(frozen=True)
class Build:
    """A vulnerable build.

    Args:
        changes: by file: what a module runs at its end; (old text, new text) of a script.
        test: that must fail.
        fails: a part of the statement in which it does.
        arguments: of the test, beside its fixtures.
        way: who applies the plan, of hostile.WAYS.
    """

    changes: Mapping[str, str | tuple[str, str]]
    test: Callable[..., None]
    fails: str
    arguments: dict[str, Any] = field(default_factory=dict)
    way: str = "shim"

    def make(self, top: Path) -> Path:
        """Make a checkout with the changes."""
        checkout(top)
        for file, change in self.changes.items():
            text = (top / file).read_text()
            if isinstance(change, str):
                (top / file).write_text(f"{text}\n{change}\n")
            else:
                assert text.count(change[0]) == 1, f"{file} has this {text.count(change[0])} times: {change[0]}"
                (top / file).write_text(text.replace(*change))
        return top


BUILDS = {
    "T-0132 mounts from the image": Build(
        {
            EDITS: AFTER_EDITS % 'spec["mounts"].append({"source": root + "/usr/local/cuda/compat", '
            '"destination": "/opt/compat", "type": "bind", "options": ["bind", "ro"]})'
        },
        LINKS,
        "line[3].startswith(own)",
        {"name": "T-0132 compat is up"},
    ),
    "T-0133 makes places by their paths": Build(
        {"hook/gpuhook/inject/apply.py": BY_PATH}, LINKS, CANARY, {"name": "T-0133 program"}, "hook"
    ),
    "T-0134 leaves links to the kernel": Build(
        {WALK: FOLLOWS, ROOTFS: ANY_MOUNT_WRITTEN}, LINKS, CANARY, {"name": "T-0134 library directory"}
    ),
    "T-0134 writes on any mount": Build(
        {ROOTFS: ANY_MOUNT_WRITTEN},
        test_hostile.test_what_the_user_mounts_is_not_written_to,
        CANARY,
        {"inside": "etc"},
    ),
    "T-0135 runs the host's ldconfig": Build(
        {FINISH: BEFORE_FINISH % '"/sbin/ldconfig", ["ldconfig", "-r", root]'},
        test_syscalls.test_nothing_is_executed_and_nothing_below_the_rootfs_has_a_path,
        'count("execve") == 1',
        {"before": ()},
    ),
    "T-0136 runs the image's ldconfig": Build(
        {FINISH: BEFORE_FINISH % '"/usr/sbin/chroot", ["chroot", root, "/usr/sbin/ldconfig"]'},
        test_hostile_code.test_programs_and_libraries_of_the_image,
        '"inside").exists()',
    ),
    "T-23266 a hook inside without an environment": Build(
        {
            EDITS: AFTER_EDITS
            % 'del hook["env"]\n    spec["hooks"]["createContainer"] = spec["hooks"].pop("prestart")'
        },
        test_hostile_code.test_no_variable_reaches_a_process_of_the_host,
        MARKER,
        {"value": "/proc/self/cwd/poc.so", "names": ["LD_PRELOAD"]},
    ),
    "T-23266 a hook without an environment": Build(
        {EDITS: AFTER_EDITS % 'del hook["env"]'},
        test_hostile_code.test_each_hook_has_a_path_and_an_environment_of_its_own,
        "any(entry.startswith",
    ),
    "T-23266 a CDI hook without an environment": Build(
        {
            "shim/gpushim/cdi/resolve.py": """
_real = _hook
def _hook(*args):
    stage, hook = _real(*args)
    del hook["env"]
    return stage, hook
"""
        },
        test_hostile_code.a_cdi_hook_gets_no_variable,
        '"owned").exists()',
    ),
    "T-23267 writes in place": Build(
        {DIRECTORY: "Directory._put = lambda self, name, make: make(name)\nNEW = posix.O_CREAT | posix.O_RDWR"},
        LINKS,
        CANARY,
        {"name": "T-23267 cache"},
    ),
    "T-23267 reads where links lead": Build(
        {WALK: FOLLOWS, ROOTFS: ANY_MOUNT_READ},
        LINKS,
        'token.splitlines() == ["token"]',
        {"name": "T-23267 cache, up"},
    ),
    "T-24260 writes to the path of what it has found": Build(
        {
            ROOTFS: """
class _Found(Directory):
    def __init__(self, fd, mount):
        super().__init__(fd, mount)
        self.path = posix.readlink(f"/proc/self/fd/{fd}")
    def symlink(self, text, name, *_):
        posix.symlink(text, self.path + "/" + name)
Directory = _Found
"""
        },
        test_races.test_a_race_won_in_every_window,
        CANARY,
        {"when": "use", "error": ""},
    ),
    "T-30465 mounts by path": Build(
        {
            MOUNTS: """
_move = lambda *_: False
def _mount(source, place, flags):
    path = None if source is None else b"/proc/self/fd/%d" % source
    _check(_mount_call(path, posix.readlink(b"/proc/self/fd/%d" % place), None, _Long(flags), None))
"""
        },
        test_syscalls.test_nothing_is_executed_and_nothing_below_the_rootfs_has_a_path,
        "not named",
        {"before": ()},
        "hook",
    ),
    "T-31133 covers with files of the image": Build(
        {EDITS: AFTER_EDITS % 'hook["args"][hook["args"].index("--cover") + 1] = f"{root}/params::/proc/params"'},
        test_hostile_code.test_each_hook_has_a_path_and_an_environment_of_its_own,
        "T-31133",
    ),
    "T-21626 leaves a file open": Build(
        {
            CREATE: """
_real = become
def become(*args):
    posix.set_inheritable(posix.open("/", 0), True)
    _real(*args)
"""
        },
        test_hostile_code.test_runc_gets_no_open_file_of_ours,
        '["fds"]',
    ),
    "T-CDI reads whatever its size": Build({BOUNDS: "SPEC = 1 << 30"}, SPEC, "done.returncode in", {"name": "large"}),
    "T-CDI takes a user's specs": Build(
        {SPECS: "_mistrust = lambda status: ''"}, SPEC, "done.returncode in", {"name": "it is a user's"}
    ),
    "T-CDI takes specs that anyone may write": Build(
        {SPECS: "_mistrust = lambda status: ''"},
        test_hostile_requests.test_a_directory_of_cdi_specs_that_others_may_write,
        "done.returncode in",
        {"mode": 0o777},
    ),
}
