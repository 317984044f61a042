"""How much of what others write is read, in one place: docs/testing.md has the table, with what happens beyond.

Each number is far above what is seen in the field and far below what costs a host anything. What an image brings is
bounded so that the hook ends within a second and 64 MiB, whatever it is; if that should ever be wrong, the kernel
ends it (gpuhook/confine.py).
Out of scope: what root's own files are read up to, beside each reader.

On the create and hook paths: constants alone.
"""

from __future__ import annotations

# What the engine writes, with an image's variables, labels and annotations in it.
CONFIG_JSON = 64 << 20  # bytes; Docker's and containerd's are 10 to 30 KiB; some generators reach a few MiB
STATE = 1 << 20  # bytes on stdin of a container with GPUs; annotations are in it, and engines keep those far below
DEVICES = 4096  # of one request: items of a variable or annotation, mounts that name devices
DEVICE_RANGE = 64  # indices of a range such as 0-3
VALUE = 65536  # characters of one variable or annotation that is read as a list or a condition
CONDITIONS = 4096  # NVIDIA_REQUIRE_* variables
CONDITIONS_TEXT = 1 << 20  # characters of all of them; the kernel starts no program with much more

# CDI specs, which root writes, often with what a driver or an operator generates.
SPEC = 4 << 20  # bytes; NVIDIA's tools write 50 KiB for 8 GPUs, gpushim ten times that for 64 in 7 MIG instances each
SPECS = 1024  # files of a directory
YAML_ALIASES = 64  # CDI specs have none; each could stand for the whole file
YAML_DEPTH = 32
YAML_DIGITS = 64  # of a number; Python before 3.9.14 takes hours for some

# NVIDIA's file of the device plugin, which may be a ConfigMap of whoever has rights on that alone.
PLUGIN_FILE = 256 << 10  # bytes; a file with ten profiles has 5 KiB
PLUGIN_NODES = 10_000  # values, with what aliases stand for; a profile has about 30
MEANT = 64  # characters of an unknown name for which a known one is looked for
PLUGIN_REPLICAS = 1000  # of a device; kubelet takes 60 000 devices of a resource
PLUGIN_SHARES = 16384  # devices that are made of a node's; each renewal costs the loop 10 us for one
PLUGIN_ENTRIES = 256  # of a list below sharing: each is held against others, and against each GPU
PLUGIN_DEVICES = 1024  # entries of all lists of devices: a pattern may take 1 ms
PLUGIN_PATTERN = 128  # characters of an entry of devices
PLUGIN_PROFILE = 253  # characters of a profile's name
CLAIM_CONFIG = 10 << 10  # bytes of an opaque config of a ResourceClaim; the API server takes as much
CLAIM_LINE = 4 << 20  # bytes of a line between the halves of the DRA driver; a slice has 350 KB at most
CLAIM_DEPTH = 32  # levels of such a line; that of a claim with the deepest GpuConfig has 11

# What an image has on its root file system.
PATH = 4096  # bytes with the NUL: PATH_MAX of <linux/limits.h>
LINKS = 40  # in one path: MAXSYMLINKS of the kernel's <linux/namei.h>
WORDS = 2048  # components of one path with its links expanded; PATH has room for 2047
LINK_TEXT = 1 << 19  # bytes of all links that one hook follows; 16384 libraries' links have 400 KiB
LEFT_BEHIND = 16384  # names that are looked through for what a killed hook has left
LOADER_CACHE = 2 << 20  # bytes of /etc/ld.so.cache; a full desktop's has 300 KiB
CACHE_EQUAL = 128  # entries with one name; glibc writes one for each architecture and set of hwcaps
CACHE_DIGITS = 64  # of a number in a name
CACHE_SECTIONS = 16  # extension sections; glibc 2.41 writes two
CACHE_HWCAPS = 4096  # bytes of the section of glibc-hwcaps names; glibc 2.41 has four names
LOADER_CONF = 1 << 16  # bytes of a loader's configuration file
LOADER_FOLDERS = 1024  # directories that one of these files names
COMPAT_NAMES = 1024  # in /usr/local/cuda/compat; the packages bring about a dozen
COMPAT_LIBRARIES = 64
COMPAT_NOTE = 1 << 16  # bytes of the note in a libcuda
ELF_SECTIONS = 256  # a libcuda has about 40
ELF_NAMES = 1 << 16  # bytes of their names
ELF_SEGMENTS = 256  # libraries have about ten
ELF_DYNAMIC = 1 << 16  # bytes of the dynamic segment; libraries have about 500
ELF_SONAME = 255  # bytes: NAME_MAX
FOLDER_NAMES = 16384  # in a directory of libraries; that of a full desktop has some thousand
FOLDER_LIBRARIES = 4096  # of one directory that count
DRIVER_PARAMS = 1 << 16  # bytes of /proc/driver/nvidia/params; a driver's has one or two thousand

# What the kernel says of mounts, which containers multiply.
MOUNT_TABLE = 64 << 20  # bytes of mountinfo; the kernel allows 100 000 mounts in a namespace, some 20 MiB

# What is said of all this.
LOG_TEXT = 1000  # characters of a line
LISTED = 16  # devices that one message lists, and sentences that a line of the log has about what was ignored

# The confined hook: gpuhook/confine.py.
HOOK_SECONDS = 10  # of CPU time; a usual one takes 0.02
HOOK_MEMORY = 512 << 20  # bytes of address space; a usual one has 20 MiB
HOOK_FILE = 16 << 20  # bytes that a file which it writes may have
HOOK_OPEN = 1024  # files open at once
