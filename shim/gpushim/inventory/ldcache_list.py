"""List the libraries that an ld.so.cache of the host names.

The layouts are glibc's (sysdeps/generic/dl-cache.h): the new one, alone or behind the old one.
Out of scope: changing a cache (gpuhook.finish.ldcache does that in a container), byte orders other than our own.
"""

from __future__ import annotations

import platform
import struct

NEW_MAGIC = b"glibc-ld.so.cache1.1"
OLD_MAGIC = b"ld.so-1.7.0"
OLD_HEADER, OLD_ENTRY = 16, 12  # bytes; the count is at offset 12
NEW_HEADER, NEW_ENTRY = 48, 24
NAME_LIMIT = 4096  # bytes of a name or a path (PATH_MAX)
# Flags of an entry: the library's ABI, by machine, and in the low byte its type. FLAG_ELF_LIBC6 is 3; ldconfig gives
# FLAG_ELF, which is 1, to 32-bit libraries that do not ask for libc themselves.
ABIS = {"x86_64": 0x0300, "aarch64": 0x0A00, "ppc64le": 0x0500, "riscv64": 0x1000, "i386": 0x0000}
FLAG_ELF, ABI_MASK = 1, 0xFF00


def libraries(cache: bytes, machine: str = "", beginnings: tuple[bytes, ...] = (b"",)) -> list[tuple[str, str]]:
    """List a cache's libraries for a machine.

    Args:
        cache: the whole file.
        machine: as uname names it, or "i386"; this one by default.
        beginnings: of the wanted names; a cache may have thousands of others.

    Returns:
        (SONAME, path), in the cache's order.

    Raises:
        ValueError: it is not a cache in the new layout, or it is damaged.
    """
    abi = ABIS.get(machine or platform.machine(), 0)
    try:
        start = _new_layout(cache)
        (count,) = struct.unpack_from("=I", cache, start + len(NEW_MAGIC))
        table = cache[start + NEW_HEADER : start + NEW_HEADER + count * NEW_ENTRY]
        if len(table) != count * NEW_ENTRY:
            raise ValueError(f"it says {count} entries, and ends before the last")
        return [
            (_text(cache, start + key), _text(cache, start + value))
            for flags, key, value, _version, _hwcap in struct.iter_unpack("=iIIIQ", table)
            if flags & FLAG_ELF
            and flags & ABI_MASK == abi
            and (cache.startswith(beginnings, start + key) or start + key >= len(cache))
        ]
    except struct.error:
        raise ValueError("it ends within its header") from None


def _new_layout(cache: bytes) -> int:
    start = 0
    if cache.startswith(OLD_MAGIC):
        (count,) = struct.unpack_from("=I", cache, 12)
        start = (OLD_HEADER + count * OLD_ENTRY + 7) & ~7  # the new header is aligned to 8
    if not cache.startswith(NEW_MAGIC, start):
        raise ValueError("it has no new-layout header")
    return start


def _text(cache: bytes, offset: int) -> str:
    end = cache.find(b"\0", offset, offset + NAME_LIMIT)
    if end < 0:
        raise ValueError(f"no string ends behind offset {offset}")
    return cache[offset:end].decode("utf-8", "surrogateescape")
