"""Make a created container's loader find the driver libraries: links, cache, configuration.

Whatever an odd image does not allow is skipped with a line in the log: the container starts all the same.

Hot path: builtin modules only; each directory is opened once.
"""

from __future__ import annotations

import posix
import sys

from gpuhook.loader import ldcache
from gpushim.ground import bounds
from gpushim.ground.errors import ROOTFS, GpushimError, visible
from gpushim.ground.fastjson import dumps
from gpushim.ground.machines import LOADER32, LOADERS, MULTIARCH
from gpushim.paths.mountinfo import OtherMountError
from gpushim.paths.walk import PATH_ONLY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from gpuhook.loader.options import Library, Options
    from gpushim.paths.directory import Directory
    from gpushim.paths.rootfs import Rootfs

    Entries = list[tuple[bytes, bytes]]  # SONAME, path in the container

COMPAT_FOLDER = "/usr/local/cuda/compat"
APART = "/usr/lib/gpushim-driver"  # for links whose usual directory has a newer driver of the image's own
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
GPUS = "/proc/driver/nvidia/gpus"
DRAWING = ("libnvidia-eglcore.so", "libEGL_nvidia.so")  # what reads application profiles
SYSTEM_FOLDERS = [start + end for start in (b"/lib", b"/usr/lib") for end in (b"", b"64", b"32", *MULTIARCH)]
MUSL_DEFAULT = b"/lib:/usr/local/lib:/usr/lib\n"  # what musl's dynlink.c searches without a path file


class Work:
    """One container made ready; `log` is the path of the log on the host, or ""."""

    __slots__ = ("apart", "directories", "log", "root")

    def __init__(self, root: Rootfs, log: str) -> None:
        self.root = root
        self.log = log
        self.directories: dict[str, Directory] = {}
        self.apart: dict[str, str] = {}  # links that are made elsewhere, by the path where the image has others

    def warn(self, step: str, error: Exception) -> None:
        """Log what was skipped; a log that cannot be written is nobody's trouble."""
        from gpushim.paths.logfile import append, now  # most containers give no reason to

        text = f"gpushim-hook: {skipped(step, error)}"[: bounds.LOG_TEXT]
        append(self.log, dumps({"level": "warning", "msg": text, "time": now()}))

    def directory(self, path: str, create: bool = False) -> Directory:
        """Open a directory to write in, once."""
        if path not in self.directories:
            self.directories[path] = self.root.directory(path, create)
        return self.directories[path]

    def read(self, path: str, limit: int) -> tuple[bytes | None, int]:
        """Read a file of the image, and the mode for one that repeats it; return None and 0644 when there is none."""
        try:
            return self.root.read(path, limit)
        except FileNotFoundError:
            return None, 0o644

    def read_own(self, path: str) -> bytes:
        """Read a file of the loader's or driver's configuration that is ours by its name.

        A file that cannot be read is b"", so that it is made again.
        """
        try:
            return self.read(path, bounds.LOADER_CONF)[0] or b""
        except OSError as error:
            self.warn(path, error)
            return b""

    def link_libraries(self, libs: list[Library]) -> Entries:
        """Make the SONAME links; return entries for the loader's cache."""
        entries = []
        for soname, directory, name in libs:
            path = f"{directory}/{soname}"
            try:
                if soname != name and not self._link(name, self.directory(directory), directory, soname):
                    path = self._link_apart(f"{directory}/{name}", directory, soname)
            except OSError as error:
                self.warn(path, error)
                path = f"{directory}/{name}"  # the cache can do without the link
            entries.append((encode(soname), encode(path)))
        return entries

    def link(self, links: list[tuple[str, str, str]]) -> Entries:
        """Make the other links; return entries for those that name a library, as ldconfig(8) has it."""
        entries = []
        for text, directory, name in links:
            path = f"{directory}/{name}"
            try:
                if f"{directory}/{text}" in self.apart:
                    path = self._link_apart(text, directory, name)
                elif not self._link(text, self.directory(directory, create=True), directory, name):
                    continue
            except OSError as error:
                if not isinstance(error, OtherMountError) or not self._is(path, text):
                    self.warn(path, error)
                    continue
            if name.startswith("lib") and ".so" in name:
                entries.append((encode(name), encode(path)))
        return entries

    def _link(self, text: str, parent: Directory, directory: str, name: str) -> bool:
        """Make a link, unless the image has a newer driver there, to which its own ldconfig would turn it again."""
        return parent.symlink(text, name, lambda target: self._is_newer(directory, target, text))

    def _is_newer(self, directory: str, target: str, text: str) -> bool:
        """Return whether the image's link leads to another version of our library, which ldconfig prefers to ours."""
        from gpuhook.loader.compat import version  # few images have a driver of their own

        path = target if target.startswith("/") else f"{directory}/{target}"
        library, _, suffix = path.rpartition("/")[2].partition(".so.")
        own_library, _, own_suffix = text.rpartition("/")[2].partition(".so.")
        is_newer = version(suffix) > version(own_suffix) > (100,)  # a driver's; a SONAME's number is small
        if library != own_library or not is_newer:
            return False
        try:
            fd, status = self.root.open(path)
        except (OSError, GpushimError):
            return False
        posix.close(fd)
        return status.st_size > 0  # where a file of an earlier driver was mounted, an empty one is left

    def _link_apart(self, text: str, directory: str, name: str) -> str:
        self.directory(APART, create=True).symlink(text, name)
        self.apart[f"{directory}/{name}"] = text
        path = f"{directory}/{name}"
        self.warn(path, GpushimError("the image has a newer driver of its own there, which cannot work", ROOTFS))
        return f"{APART}/{name}"

    def _is(self, path: str, name: str) -> bool:
        """Return whether two paths are one file already, as in an image whose /lib is a link to usr/lib."""
        inodes = []
        for file in (path, name):
            try:
                fd = self.root.reach(file)
            except OSError:
                return False
            status = posix.fstat(fd)
            posix.close(fd)
            inodes.append((status.st_dev, status.st_ino))
        return inodes[0] == inodes[1]

    def compatibility(self, driver: str, cuda: str) -> Entries:
        """Return the cache entries of the image's own libcuda and its kin, if they are to come first."""
        if not (driver or cuda) or not self.root.exists(COMPAT_FOLDER):
            return []
        from gpuhook.loader.compat import choose  # many images have no such directory

        libraries = choose(self.root, driver, cuda, self.warn, COMPAT_FOLDER)
        return [(encode(name), encode(path)) for name, path in libraries]

    def configure(
        self, entries: Entries, machine: str, driver: str = "", cuda: str = "", entries32: Entries | None = None
    ) -> None:
        """Add the libraries to the image's loader; an image without one (static binaries) needs nothing.

        Args:
            entries: (SONAME, path in the container) of the libraries.
            machine: as uname(2) calls it.
            driver: version of the host's driver, if the container may use a newer libcuda of its own.
            cuda: CUDA version of that driver.
            entries32: the same as `entries`, for the loader of 32-bit programs.
        """
        exists = self.root.exists
        glibc = machine in LOADERS and exists(LOADERS[machine])
        # Alpine's gcompat brings a file with the name of glibc's loader.
        if exists("/etc/alpine-release") or (not glibc and exists(f"/lib/ld-musl-{machine}.so.1")):
            self.attempt(f"/etc/ld-musl-{machine}.path", self.add_to_musl_path, _folders(entries), machine)
        elif glibc or exists("/etc/ld.so.cache") or (entries32 and exists(LOADER32)):
            entries = self.compatibility(driver, cuda) + entries  # of two with one name the first counts
            entries32 = entries32 or []
            self.attempt("/etc/ld.so.cache", self.merge_cache, entries, entries32, machine)
            self.attempt("/etc/ld.so.conf.d", self.name_folders, _folders(entries + entries32))

    def attempt(self, path: str, step: Callable[..., None], *args: object) -> None:
        """Take a step that the container can start without."""
        try:
            step(*args)
        except (OSError, GpushimError) as error:
            self.warn(path, error)

    def merge_cache(self, entries: Entries, entries32: Entries, machine: str) -> None:
        """Add our libraries to glibc's cache."""
        for libraries, flags in ((entries, ldcache.FLAGS), (entries32, ldcache.FLAGS32)):
            if libraries and machine not in flags:
                raise GpushimError(f"libraries of {machine} have no known mark in it", ROOTFS)
        etc = self.directory("/etc")
        old, mode = self.read("/etc/ld.so.cache", bounds.LOADER_CACHE)
        kinds = [flags.get(machine, 0) for flags in (ldcache.FLAGS, ldcache.FLAGS32)]
        new = ldcache.merge(old, entries, kinds[0], entries32, kinds[1])
        if new is not None:
            etc.write("ld.so.cache", new, mode)

    def name_folders(self, folders: list[bytes], keep: bool = False) -> None:
        """Name our directories for the ldconfig that the user may run later (ld.so.conf, ldconfig(8)).

        ldconfig prefers what it reads first. A directory of the system's own comes last: named first, it would win
        over /usr/local/lib with all that the image has in it. `keep` leaves those named before, by another hook.
        """
        etc = self.directory("/etc")
        for name, listed in (
            ("00-gpushim.conf", [folder for folder in folders if folder not in SYSTEM_FOLDERS]),
            ("zz-gpushim.conf", [folder for folder in folders if folder in SYSTEM_FOLDERS]),
        ):
            old = self.read_own(f"/etc/ld.so.conf.d/{name}") if listed else b""
            before = folders_in(old) if keep else []
            text = b"".join([folder + b"\n" for folder in dict.fromkeys([*before, *listed])])
            if listed and old != text:
                self.directory("/etc/ld.so.conf.d", create=True).write(name, text)
        if not self.root.exists("/etc/ld.so.conf"):
            etc.write("ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n")

    def add_to_musl_path(self, folders: list[bytes], machine: str) -> None:
        """Add our directories to those that musl searches; its path file has newlines or colons between."""
        name = f"ld-musl-{machine}.path"
        etc = self.directory("/etc")
        old, mode = self.read(f"/etc/{name}", bounds.LOADER_CONF)
        listed = folders_in((MUSL_DEFAULT if old is None else old).replace(b":", b"\n"))
        if any(folder not in listed for folder in folders):
            etc.write(name, b"".join([folder + b"\n" for folder in dict.fromkeys([*listed, *folders])]), mode)

    def restrict_display(self, mask: int) -> None:
        """Restrict NVIDIA's EGL to the container's GPUs, by an application profile (NVIDIA driver README).

        Bit n of the mask stands for the GPU with minor number n.
        """
        text = b'{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",%#x]}],' % mask
        text += b'"rules":[{"pattern":[],"profile":"_container_"}]}\n'
        if self.read_own(f"{PROFILES}/10-container.conf") != text:
            self.directory(PROFILES, create=True).write("10-container.conf", text)


def finish(work: Work, options: Options) -> None:
    """Do what the hook's arguments say, in a container whose mounts are made."""
    folders32 = {library[1] for library in options.lib32} - {library[1] for library in options.lib}
    links32 = [link for link in options.link if _leads_into(link, folders32)] if folders32 else []
    entries32 = work.link_libraries(options.lib32) + work.link(links32)
    entries = work.link_libraries(options.lib) + work.link([link for link in options.link if link not in links32])
    if options.own_libcuda and work.root.exists(COMPAT_FOLDER):
        work.warn(COMPAT_FOLDER, GpushimError(f"its newer libcuda is not used: {options.own_libcuda}", ROOTFS))
    if entries or entries32:
        work.configure(entries, posix.uname().machine, options.driver, options.cuda, entries32)
    mask, covers = options.profile_mask, options.cover
    if options.node_link or options.gpu:
        from gpuhook.inject import dev_links  # not needed where the arguments say which GPUs the container has

        dev_links.link(work.root, options.node_link, work.warn)
        minors = [minor for minor, _ in options.gpu if dev_links.has_gpu(work.root, minor)]
        hidden = [f"{GPUS}/{name}" for minor, name in options.gpu if minor not in minors and options.empty]
        covers = [*covers, *((options.empty, path) for path in hidden)]
        if any(soname.startswith(DRAWING) for soname, *_ in options.lib):
            mask |= dev_links.mask(minors, work.warn)
    if mask:
        work.attempt(f"{PROFILES}/10-container.conf", work.restrict_display, mask)
    if covers:
        from gpuhook.inject.cover import cover  # not needed where the container may see all that the host sees

        for source, path in covers:
            work.attempt(path, cover, work.root, source, path)
    for source, path in options.socket:
        if may_run(source):
            from gpuhook.inject.service_sockets import lend  # of a service that runs

            work.attempt(path, lend, work.root, source, path)


def may_run(source: str) -> bool:
    """Return whether a socket's directory is there; who serves its file system, if others do, is not asked."""
    try:
        posix.close(posix.open(source.rpartition("/")[0], PATH_ONLY))
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _leads_into(link: tuple[str, str, str], folders: set[str]) -> bool:
    """Return whether a link is in one of these directories, or leads to a file there."""
    text, directory, _ = link
    above = text.rpartition("/")[0]
    return directory in folders or (above if above.startswith("/") else f"{directory}/{above}") in folders


def folders_in(text: bytes) -> list[bytes]:
    """Read a list of directories, one a line, as far as it is one: absolute paths without control characters."""
    lines = [line for line in text.split(b"\n") if line.startswith(b"/") and len(line) < bounds.PATH]
    return [line for line in lines if min(line) >= 32 and 127 not in line][: bounds.LOADER_FOLDERS]


def skipped(step: str, error: Exception) -> str:
    """Return the sentence about a skipped step: names in it are the image's."""
    reason = error.strerror if isinstance(error, OSError) else error
    return visible(f"skipped {step}: {reason}")


def _folders(entries: Entries) -> list[bytes]:
    return list(dict.fromkeys([path.rpartition(b"/")[0] or b"/" for _, path in entries]))


def encode(text: str) -> bytes:
    """Return a path, or a part of one, as the kernel has it."""
    return text.encode(sys.getfilesystemencoding(), "surrogateescape")
