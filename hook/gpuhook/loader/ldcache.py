"""Merge libraries into the bytes of a glibc /etc/ld.so.cache.

A cache is never rebuilt: the image's entries stay as they are, except that one with a SONAME of ours and
our architecture gives way. Three layouts exist (glibc's sysdeps/generic/dl-cache.h and elf/cache.c):

    new       48-byte header, 24-byte entries, strings, extension sections (glibc >= 2.33)
    combined  the old layout without strings, padding to 8 bytes, then the new one; written back as new alone,
              which is all that loaders since glibc 2.2 (2000) look at
    old       16-byte header, 12-byte entries, strings

Offsets of names and paths count from the new header, or from the end of the old entries; offsets in the
extension directory count from the start of the file. Everything is little-endian, as NVIDIA's machines are.

What an image has here costs time that grows with the file's size alone: few entries may be one name to the loader,
and no run of digits may be long. A cache beyond that is left alone, as a damaged one is.

Out of scope: files (bytes in, bytes out), ELF, ldconfig's configuration.

Hot path: no imports but gpushim's; 600 entries in a fraction of a millisecond, because only the entries that a
bisection meets are looked at, and all offsets are moved at once by adding one long integer to the entry array.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.errors import ROOTFS, GpushimError
from gpushim.ground.machines import CACHE_ABIS, CACHE_LIBC6, COMPANIONS, LOADERS

# The "flags" of a library, and of a 32-bit one, by machine.
FLAGS = {machine: CACHE_ABIS[machine] | CACHE_LIBC6 for machine in LOADERS}
FLAGS32 = {machine: CACHE_ABIS[other] | CACHE_LIBC6 for machine, other in COMPANIONS.items()}

_OLD_MAGIC = b"ld.so-1.7.0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE = 2  # cache_file_new_flags_endian_little; 0, from before glibc 2.33, is taken for the machine's own
_EXTENSION_MAGIC = 0xEAA42174
_HWCAPS = 1  # section of offsets of glibc-hwcaps directory names
_EMPTY = _NEW_MAGIC + bytes(8) + bytes([_LITTLE]) + bytes(19)


def _damaged(fault: str) -> GpushimError:
    """Return the error for a cache that the loader uses, while parts of it point outside it: it is left alone."""
    return GpushimError(f"/etc/ld.so.cache of the container is damaged: {fault}", ROOTFS)


class _Cache:
    """The parts of a cache.

    Args:
        first: offset of the first entry.
        size: bytes of an entry, 24 or 12.
        count: number of entries.
        base: what the offsets of strings count from.
        extension: offset of the extension directory, or the end of the file.
    """

    __slots__ = ("base", "columns", "count", "data", "end", "extension", "first", "size")

    def __init__(self, data: bytes, first: int, size: int, count: int, base: int, extension: int) -> None:
        self.data, self.first, self.size, self.count, self.base = data, first, size, count, base
        self.extension = extension
        self.end = first + size * count
        if not self.end <= extension <= len(data):
            raise _damaged("its extension directory lies outside its strings")
        if extension > self.end and data[extension - 1]:
            raise _damaged("its last name does not end")
        self.columns = memoryview(data)[first : self.end].cast("I")
        width = size // 4
        for column in (1, 2):
            offsets = self.columns[column::width].tolist()  # min and max take three times as long without it
            if count and not self.end - base <= min(offsets) <= max(offsets) < extension - base:
                raise _damaged("an entry's name or path lies outside it")

    def flags(self, index: int) -> int:
        return self.columns[index * self.size // 4]

    def text(self, index: int, column: int) -> int:
        """Return the offset in the file of an entry's name (column 1) or path (column 2)."""
        return self.base + self.columns[index * self.size // 4 + column]


def _u32(data: bytes | bytearray, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")


def _pack(*numbers: int) -> bytes:
    return b"".join([number.to_bytes(4, "little") for number in numbers])


def _parse(data: bytes) -> _Cache | None:
    """Find the parts of a cache; return None if the loader ignores such a file (_dl_load_cache_lookup)."""
    start = 0
    if data.startswith(_OLD_MAGIC) and len(data) > 16:
        count = _u32(data, 12)
        end = 16 + 12 * count
        if end > len(data):
            return None
        start = end + 7 & ~7
        if not data.startswith(_NEW_MAGIC, start) or len(data) < start + 48:
            return _Cache(data, 16, 12, count, end, len(data))
    if not data.startswith(_NEW_MAGIC, start) or len(data) <= start + 48:
        return None
    count = _u32(data, start + 20)
    if count > (len(data) - start - 48) // 24 or data[start + 28] & 3 not in (0, _LITTLE):
        return None
    return _Cache(data, start + 48, 24, count, start, _u32(data, start + 32) or len(data))


def compare(text: bytes, i: int, key: bytes) -> int:
    """Order two NUL-terminated names as the loader does (_dl_cache_libcmp): digits count as numbers.

    Args:
        text: bytes with the first name at offset `i`.
        i: see `text`.
        key: the second name, with its NUL.

    Raises:
        IndexError: a name does not end, or is mostly digits.
    """
    j = 0
    beginning = text[i : i + len(key)]
    if beginning == key:
        return 0
    if len(beginning) == len(key):  # the bytes that are equal need no loop: most names begin alike
        different = int.from_bytes(beginning, "big") ^ int.from_bytes(key, "big")
        j = len(key) - (different.bit_length() + 7 >> 3)
        while j and 48 <= key[j - 1] <= 57:  # as numbers, 1 and 10 differ in the whole
            j -= 1
        i += j
    while text[i]:
        a, b = text[i], key[j]
        if 48 <= a <= 57:
            if not 48 <= b <= 57:
                return 1
            x, i = _number(text, i)
            y, j = _number(key, j)
            if x != y:
                return (x - y + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
        elif 48 <= b <= 57:
            return -1
        elif a != b:
            return a - b
        else:
            i += 1
            j += 1
    return -key[j]


def _number(text: bytes, at: int) -> tuple[int, int]:
    value = 0
    end = at + bounds.CACHE_DIGITS + 1
    while 48 <= text[at] <= 57:
        value = value * 10 + text[at] - 48 & 0xFFFFFFFF  # the loader's int wraps as well
        at += 1
        if at == end:
            raise IndexError
    return value, at


def merge(
    data: bytes | None,
    libraries: list[tuple[bytes, bytes]],
    flags: int,
    others32: list[tuple[bytes, bytes]] | None = None,
    flags32: int = 0,
) -> bytes | None:
    """Add libraries to a cache, so that the loader finds ours first.

    Args:
        data: the container's cache; None when there is none.
        libraries: (SONAME, path in the container); of two with one SONAME the first counts.
        flags: one of FLAGS or FLAGS32.
        others32: the same for other programs, whose loader looks for
        flags32: these flags.

    Returns:
        the new cache, or None if the old one says all this already. One that the loader ignores (magic,
        byte order, size) is replaced by ours alone: the image's libraries resolve as they did before.

    Raises:
        GpushimError: the cache is damaged in a way that the loader does not notice.
    """
    cache = (data and _parse(data)) or _Cache(_EMPTY, 48, 24, 0, 0, 48)
    view = memoryview(cache.data)[cache.first : cache.end]
    strings_start = cache.extension - cache.base
    strings, copied = b"", 0
    pieces: list[bytes | memoryview] = []
    try:
        ours = [(*library, flags) for library in libraries] + [(*library, flags32) for library in others32 or ()]
        for group in _sorted(ours):
            low, high = _equal_range(cache, group[0][0], copied)
            added = {}
            for name, path, kind in group:
                if not _stands(cache, low, high, name, path, kind):
                    offset = strings_start + len(strings)
                    entry = _pack(kind, offset, offset + len(name) + 1) + bytes(12)
                    added[kind] = entry[: cache.size]
                    strings += name + b"\0" + path + b"\0"
            if not added:
                continue
            present = [(cache.flags(index), _entry(cache, index)) for index in range(low, high)]
            # Entries of one name stand in descending order of their flags (compare in elf/cache.c).
            rows = sorted(
                [*added.items(), *(row for row in present if row[0] not in added)], key=_by_flags, reverse=True
            )
            pieces.append(view[copied * cache.size : low * cache.size])
            pieces += [entry for _, entry in rows]
            copied = high
    except IndexError:
        raise _damaged("a name in it does not end, or is mostly digits") from None
    if not strings:
        return None
    pieces.append(view[copied * cache.size :])
    strings += bytes(-len(strings) % 4)  # the extension directory stays aligned
    return _assemble(cache, b"".join(pieces), strings)


def _by_flags(row: tuple[int, bytes]) -> int:
    return row[0]


def _entry(cache: _Cache, index: int) -> bytes:
    at = cache.first + index * cache.size
    return cache.data[at : at + cache.size]


def _sorted(libraries: list[tuple[bytes, bytes, int]]) -> list[list[tuple[bytes, bytes, int]]]:
    """Group libraries by name, in the cache's descending order; of two with equal flags drop the later."""
    groups: list[list[tuple[bytes, bytes, int]]] = []
    for library in libraries:
        key = library[0] + b"\0"
        low, high = 0, len(groups)
        while low < high:
            middle = (low + high) // 2
            order = compare(groups[middle][0][0] + b"\0", 0, key)
            if not order:
                if all(present[2] != library[2] for present in groups[middle]):
                    groups[middle].append(library)
                break
            low, high = (middle + 1, high) if order > 0 else (low, middle)
        else:
            groups.insert(low, [library])
    return groups


def _equal_range(cache: _Cache, name: bytes, low: int) -> tuple[int, int]:
    """Return the range of entries, from `low` on, whose name the loader takes for `name`."""
    key = name + b"\0"
    high = cache.count
    while low < high:
        middle = (low + high) // 2
        if compare(cache.data, cache.text(middle, 1), key) > 0:
            low = middle + 1
        else:
            high = middle
    while high < cache.count and compare(cache.data, cache.text(high, 1), key) == 0:
        high += 1
        if high - low > bounds.CACHE_EQUAL:  # such as libcuda.so.1, .01, .001 and so on: each is ours to the loader
            raise _damaged(f"more than {bounds.CACHE_EQUAL} entries in it are one name to the loader")
    return low, high


def _stands(cache: _Cache, low: int, high: int, name: bytes, path: bytes, flags: int) -> bool:
    """Return whether exactly our entry is there, and none of the same name for other processors (hwcaps)."""
    matches = [index for index in range(low, high) if cache.flags(index) == flags]
    return (
        len(matches) == 1
        and not any(_entry(cache, matches[0])[12:])
        and cache.data.startswith(name + b"\0", cache.text(matches[0], 1))
        and cache.data.startswith(path + b"\0", cache.text(matches[0], 2))
    )


def _assemble(cache: _Cache, entries: bytes, strings: bytes) -> bytes:
    old_strings = cache.data[cache.end : cache.extension]
    count = len(entries) // cache.size
    if cache.size == 12:  # offsets count from the end of the entries: none of them moves
        return cache.data[:12] + _pack(count) + entries + old_strings + strings
    shift = (count - cache.count) * 24
    start = cache.first - 48
    header = cache.data[start : cache.first]
    extension = b""
    if cache.extension < len(cache.data):
        extension = _moved_extension(cache, shift, shift + len(strings) - start)
    return b"".join(
        (
            header[:20],
            _pack(count, len(old_strings) + len(strings)),
            header[28:32],
            _pack(48 + len(entries) + len(old_strings) + len(strings) if extension else 0),
            header[36:],
            _moved_entries(entries, shift),
            old_strings,
            strings,
            extension,
        )
    )


def _moved_entries(entries: bytes, shift: int) -> bytes:
    """Add `shift` to each name and path offset; all fit in 32 bits, so nothing carries into a neighbour."""
    step = bytes(4) + _pack(abs(shift), abs(shift)) + bytes(12)
    all_steps = int.from_bytes(step * (len(entries) // 24), "little")
    number = int.from_bytes(entries, "little")
    return (number + all_steps if shift > 0 else number - all_steps).to_bytes(len(entries), "little")


def _moved_extension(cache: _Cache, strings_shift: int, shift: int) -> bytes:
    """Copy the extension directory and its sections with their offsets moved."""
    at = cache.extension
    blob = bytearray(cache.data[at:])
    count = _u32(cache.data, at + 4)
    if _u32(blob, 0) != _EXTENSION_MAGIC or count > min(bounds.CACHE_SECTIONS, (len(blob) - 8) // 16):
        raise _damaged("its extension directory cannot be read")
    for entry in range(8, 8 + 16 * count, 16):
        tag, offset, size = _u32(blob, entry), _u32(blob, entry + 8), _u32(blob, entry + 12)
        if not at <= offset <= offset + size <= len(cache.data):
            raise _damaged("an extension section lies outside it")
        blob[entry + 8 : entry + 12] = _pack(offset + shift)
        if tag == _HWCAPS and size > bounds.CACHE_HWCAPS:
            raise _damaged("it has too many glibc-hwcaps names")
        if tag == _HWCAPS:
            for word in range(offset - at, offset - at + size - 3, 4):
                name = _u32(blob, word)
                # Loader and ldconfig -p count these from the start of the file, the writer of combined caches
                # does not (seen with glibc 2.36): what readers take for no name stays none.
                if not cache.end <= name < cache.extension:
                    name = cache.extension - 1
                blob[word : word + 4] = _pack(name - cache.base + strings_shift)
    return bytes(blob)
