"""The hooks of CDI specs that NVIDIA's tools made: `nvidia-cdi-hook X ...` and `nvidia-ctk hook X ...`.

    create-symlinks --link TARGET::LINK...               update-application-profile
    update-ldcache --folder DIR...                       disable-device-node-modification
    create-soname-symlinks --folder DIR...               chmod --mode OCTAL --path PATH...
    enable-cuda-compat [--host-driver-version V] [--host-cuda-version V] [--cuda-compat-container-root DIR]

They do what NVIDIA's do, by our means: below the rootfs all goes through rootfs.py, and no ldconfig runs. What an
image does not allow is skipped with a line on stderr. So are unknown hooks and options, which are of newer tools: the
container starts. Such specs have them as createContainer hooks; the stages prestart and createRuntime work too.

Not for the hot path: our own specs bring our own hook.
"""

from __future__ import annotations

import posix

from gpuhook import prestart
from gpuhook.confine import confine
from gpuhook.inject import cover, dev_links, roots
from gpuhook.loader.finish import COMPAT_FOLDER, PROFILES, encode, folders_in
from gpuhook.nvidia.container import Container, decode, libraries, open_container, state_from
from gpushim.ground.errors import USAGE, GpushimError, quote
from gpushim.paths.mountinfo import OtherMountError, mount_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from gpuhook.loader.finish import Entries

    Options = dict[str, list[str]]

LISTS = ("link", "folder", "path")  # options that may be given more than once, or with commas
FLAGS = ("debug", "d", "quiet", "help", "h")  # of no use here
COMPAT = "00-gpushim-compat.conf"  # names the folder that enable-cuda-compat has chosen, for those that come later


def main(argv: list[str]) -> None:
    """Run as a process; argv[0] tells which program of NVIDIA's this is."""
    prestart.main(argv, run)


def run(argv: list[str]) -> None:
    """Run the hook that the words name.

    Raises:
        GpushimError: an option's value is wrong, there is no such container, or it is none that we may touch.
    """
    prestart.isolate()
    confine()
    words = _without_flags(argv[1:])
    if argv[0].rpartition("/")[2] == "nvidia-ctk":
        words = _without_flags(words[1:])  # the first is "hook": dispatch.py
    if not words or words[0] not in HOOKS:
        prestart.say(f"nothing is done: there is no hook {quote(words[0])!r}" if words else "no hook is named")
        prestart.drain()
        return
    work, expected = HOOKS[words[0]]
    options = parse(words[1:], expected)
    work(open_container(state_from(_last(options, "container-spec", "-"))), options)
    prestart.drain()


def _without_flags(words: list[str]) -> list[str]:
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    return words[at:]


def parse(words: list[str], expected: tuple[str, ...]) -> Options:
    """Sort options, `--name value` and `--name=value`, with one dash or two, into values by name.

    Raises:
        GpushimError: one has no value.
    """
    options: Options = {}
    following = iter(words)
    for word in following:
        name, equals, value = word.lstrip("-").partition("=")
        if name in FLAGS and word.startswith("-"):
            continue
        if not word.startswith("-") or name not in (*expected, "container-spec"):
            prestart.say(f"{quote(word)} is not known and ignored")
            continue
        argument = value if equals else next(following, None)
        if argument is None:
            raise GpushimError(f"--{name} has no value", USAGE)
        values = argument.split(",") if name in LISTS else [argument]
        options.setdefault(name, []).extend([text.strip() for text in values if text.strip()])
    return options


def _last(options: Options, name: str, default: str = "") -> str:
    return options.get(name, [default])[-1] if options.get(name) else default


def create_symlinks(work: Container, options: Options) -> None:
    """Make links; each replaces whatever is there, but a directory."""
    links = []
    for value in options.get("link", []):
        target, _, path = value.partition("::")
        directory, _, name = f"/{path.lstrip('/')}".rpartition("/")
        if not target or "::" in path or name in ("", ".", "..") or "\0" in value:
            raise GpushimError(f"--link {quote(value)}: want TARGET::LINK", USAGE)
        links.append((target, directory, name))
    for target, directory, name in dict.fromkeys(links):
        try:
            parent = work.root.directory(directory or "/", create=True, also=_own_dev(work, directory))
            try:
                parent.symlink(target, name)
            finally:
                parent.close()
        except OSError as error:
            work.warn(f"{directory}/{name}", error)


def _own_dev(work: Container, path: str) -> set[bytes]:
    """Return the mounts besides the rootfs's own that a path may lead to: none but below /dev (dev_links.py)."""
    words = path.split("/")
    return roots.own_dev(work.root) if words[:2] == ["", "dev"] and ".." not in words else set()


def update_ldcache(work: Container, options: Options) -> None:
    """Add the libraries in some folders to the loader's, those of the image's newer CUDA before all others."""
    machine = posix.uname().machine
    entries: dict[int, Entries] = {32: [], 64: []}
    for folder in dict.fromkeys([*_chosen(work), *options.get("folder", [])]):
        for bits, soname, path in libraries(work, folder, machine):
            entries[bits].append((soname, path))
    if entries[32] or entries[64]:
        work.configure(entries[64], machine, entries32=entries[32])


def _chosen(work: Container) -> list[str]:
    folders = folders_in(work.read_own(f"/etc/ld.so.conf.d/{COMPAT}"))
    return [decode(line) for line in folders[:1]]


def create_soname_symlinks(work: Container, options: Options) -> None:
    """Make the links that libraries are loaded by."""
    for folder in options.get("folder", []):
        libraries(work, folder, posix.uname().machine)


def enable_cuda_compat(work: Container, options: Options) -> None:
    """Put the image's own libcuda first where it is newer than the host's and runs on its driver."""
    from gpuhook.loader import compat  # other hooks do without

    driver, cuda = _last(options, "host-driver-version"), _last(options, "host-cuda-version")
    folder = _last(options, "cuda-compat-container-root", COMPAT_FOLDER).rstrip("/")
    if not folder.startswith("/") or "\n" in folder:
        raise GpushimError("--cuda-compat-container-root: want an absolute path", USAGE)
    libraries = compat.choose(work.root, driver, cuda, work.warn, folder) if driver or cuda else []
    entries = [(encode(soname), encode(path)) for soname, path in libraries]
    work.attempt(f"/etc/ld.so.conf.d/{COMPAT}", _remember, work, encode(folder) + b"\n" if entries else b"")
    if entries and work.root.exists("/etc/ld.so.cache"):  # without one, update-ldcache makes it
        work.attempt("/etc/ld.so.cache", work.merge_cache, entries, [], posix.uname().machine)


def _remember(work: Container, text: bytes) -> None:
    """Record for update-ldcache and for ldconfig which folder was chosen; an earlier container's choice is void."""
    if work.read_own(f"/etc/ld.so.conf.d/{COMPAT}") != text:
        work.directory("/etc/ld.so.conf.d", create=True).write(COMPAT, text)


def chmod(work: Container, options: Options) -> None:
    """Change the mode of files and directories that are the container's alone."""
    text = _last(options, "mode", "-")
    mode = int(text, 8) if text.isascii() and text.isdecimal() and not set(text) & set("89") else -1
    if not 0 <= mode <= 0o7777:
        raise GpushimError(f"--mode {quote(text)}: want an octal mode", USAGE)
    for path in options.get("path", []):
        try:
            fd = work.root.reach(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            work.warn(path, error)
            continue
        try:
            if posix.fstat(fd).st_mode & 0o7777 == mode:
                continue
            if mount_id(fd) not in {work.root.mount, *_own_dev(work, path)}:
                raise OtherMountError(path)
            posix.chmod(f"/proc/self/fd/{fd}", mode)
        except OSError as error:
            work.warn(path, error)
        finally:
            posix.close(fd)


def disable_device_node_modification(work: Container, options: Options) -> None:
    """Show the container that its libraries are not to make device nodes."""
    work.attempt(cover.PARAMS, cover.restrict_params, work.root)


def update_application_profile(work: Container, options: Options) -> None:
    """Restrict NVIDIA's EGL to the container's GPUs: those whose nodes are in it."""
    mask = dev_links.mask(dev_links.gpus(work.root), work.warn)
    if mask:
        work.attempt(f"{PROFILES}/10-container.conf", work.restrict_display, mask)


HOOKS: dict[str, tuple[Callable[[Container, Options], None], tuple[str, ...]]] = {
    "create-symlinks": (create_symlinks, ("link",)),
    "update-ldcache": (update_ldcache, ("folder", "ldconfig-path")),
    "create-soname-symlinks": (create_soname_symlinks, ("folder", "ldconfig-path")),
    "enable-cuda-compat": (
        enable_cuda_compat,
        ("host-driver-version", "host-cuda-version", "cuda-compat-container-root"),
    ),
    "chmod": (chmod, ("mode", "path")),
    "disable-device-node-modification": (disable_device_node_modification, ()),
    "update-application-profile": (update_application_profile, ()),
}
