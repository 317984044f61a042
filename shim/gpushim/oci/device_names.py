"""Device names: how they are written in a request.

Create path: imports nothing but bounds, errors and the table of authorization.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.errors import REQUEST, GpushimError, quote
from gpushim.oci.authorization import FEATURES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence

    # (kind, value, text for messages). Kinds and values: those of WORDS None; "index" int;
    # "uuid" and "uuid-prefix" str with an upper-case GPU- and lower-case digits; "pci" str such as
    # 00000000:3b:00.0; "mig-index" (int, int); "mig-uuid" and "mig-legacy" str; "cdi" and "unknown" str; what is
    # given beside GPUs: "imex-channel" int, "feature" str.
    Item = tuple[str, object, str]

_DIGITS = "0123456789"
_HEX = "0123456789abcdef"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALNUM = _LETTERS + _DIGITS
CHANNEL, FEATURE = "imex-channel", "feature"
ALL, ALL_USABLE = "all", "all-usable"
WORDS = (ALL, ALL_USABLE, "none")  # of which the first decides about the GPUs
NOT_GPU_KINDS = ("cdi", CHANNEL, FEATURE)  # kinds of items that do not decide about the GPUs
_TYPED = {"gpu": "index", "mig": "mig-index"}  # CDI names with the strategy type-index: gpu0, mig0:1
_UUID_GROUPS = [8, 4, 4, 4, 12]  # RFC 9562, section 4
UUID_DIGITS = _UUID_GROUPS[0]  # of a UUID, at least


def parse(texts: Sequence[str], kinds: Sequence[str]) -> Optional[list[Item]]:
    """Parse a list of device names.

    Read from left to right, the first of WORDS decides about the GPUs alone; "void" anywhere decides over
    everything. CDI names of other things than this host's GPUs stay beside both.

    Args:
        texts: trimmed, non-empty names.
        kinds: the CDI kinds that mean this host's own GPUs, such as nvidia.com/gpu.

    Returns:
        Items in order without duplicates, None for "void". "none" alone is [], with CDI names it is an item.

    Raises:
        GpushimError: REQUEST, for a bad range, a replica suffix or too many names.
    """
    if "void" in texts:
        return None
    items: list[Item] = []
    keys = set()
    decided = ""
    for text in texts:
        if decided and not is_qualified(text):
            continue
        for item in _read(text, kinds):
            if item[0] not in NOT_GPU_KINDS and decided:
                continue
            if item[0] in WORDS:
                decided = item[0]
                items = [earlier for earlier in items if earlier[0] in NOT_GPU_KINDS]
            if item[:2] not in keys:
                keys.add(item[:2])
                items.append(item)
        if len(items) > bounds.DEVICES:
            raise GpushimError(f"the request names more than {bounds.DEVICES} devices; name fewer", REQUEST)
    return [] if decided == "none" and len(items) == 1 else items


def is_qualified(text: str) -> bool:
    """Return whether text is a CDI-qualified name, vendor/class=device.

    The rule is that of the CDI specification, section "CDI JSON Specification": vendor and class begin with
    a letter, the device with a letter or digit, all end with a letter or digit, one character is enough.
    """
    kind, _, device = text.partition("=")
    vendor, _, category = kind.partition("/")
    words = ((vendor, _LETTERS, "_.-"), (category, _LETTERS, "_.-"), (device, _ALNUM, "_.-:"))
    for word, first, middle in words:
        # str.strip returns "" exactly when every character is in the given set.
        if not word or word[0] not in first or word[-1] not in _ALNUM or word.strip(_ALNUM + middle):
            return False
    return True


def cdi_name(name: str) -> str:
    """Return a device's name as a CDI device can have it: MIG-GPU-UUID/1/0 of old drivers is MIG-GPU-UUID:1:0.

    A CDI name has no slash; ":" already stands between a GPU and its instance.
    """
    return name.replace("/", ":")


def number(text: str) -> int:
    """Return an index: at most nine ASCII digits without sign or leading zero; -1 if text is none."""
    if not text or len(text) > 9 or text.strip(_DIGITS) or (text[0] == "0" and text != "0"):
        return -1
    return int(text)


def _read(text: str, kinds: Sequence[str]) -> list[Item]:
    name = text
    if is_qualified(text):
        kind, _, name = text.partition("=")
        if kind not in kinds:
            return [("cdi", text, text)]
    if name in WORDS:
        return [(name, None, name)]
    if "::" in name:
        raise GpushimError(
            f'the request names the replica "{quote(text)}", but replicas exist only between a Kubernetes '
            f'device plugin and the kubelet; name the device without "::" and what follows',
            REQUEST,
        )
    first, dash, last = name.partition("-")
    if dash and number(first) >= 0 and number(last) >= 0:
        return _range(text, number(first), number(last))
    form, value = _single(name)
    if form == "unknown" and name != text:
        if name in FEATURES:
            return [(FEATURE, name, text)]
        if name.startswith(CHANNEL + "-") and number(name[len(CHANNEL) + 1 :]) >= 0:
            return [(CHANNEL, number(name[len(CHANNEL) + 1 :]), text)]
        form, value = _single(name[3:])
        if form != _TYPED.get(name[:3]):
            return [("cdi", text, text)]
    return [(form, value, text if form == "unknown" else name)]


def _range(text: str, first: int, last: int) -> list[Item]:
    if first > last or last - first >= bounds.DEVICE_RANGE:
        raise GpushimError(
            f'the request names the range "{quote(text)}", but a range goes upwards and has at most '
            f"{bounds.DEVICE_RANGE} indices; write it as first-last, for example 0-3",
            REQUEST,
        )
    return [("index", index, str(index)) for index in range(first, last + 1)]


def _single(name: str) -> tuple[str, object]:
    if number(name) >= 0:
        return ("index", number(name))
    head, tail = name[:4].upper(), name[4:].lower()
    form = _uuid(tail)
    if head == "GPU-" and form:
        return (form, head + tail)
    if head == "MIG-" and form == "uuid":
        return ("mig-uuid", head + tail)
    if head == "MIG-" and tail.startswith("gpu-"):
        uuid, _, instance = tail[4:].replace(":", "/").partition("/")  # as cdi_name writes it
        gi, _, ci = instance.partition("/")
        if _uuid(uuid) == "uuid" and number(gi) >= 0 and number(ci) >= 0:
            return ("mig-legacy", f"MIG-GPU-{uuid}/{gi}/{ci}")
    gpu, _, mig = name.partition(":")
    if number(gpu) >= 0 and number(mig) >= 0:
        return ("mig-index", (number(gpu), number(mig)))
    address = _pci(name.lower())
    return ("pci", address) if address else ("unknown", name)


def _uuid(text: str) -> str:
    """Return "uuid", "uuid-prefix" (at least 8 digits) or "" for lower-case text after GPU- or MIG-."""
    lengths = [len(group) for group in text.split("-")]
    if text.replace("-", "").strip(_HEX):
        return ""
    if lengths == _UUID_GROUPS:
        return "uuid"
    last = len(lengths) - 1
    if last >= len(_UUID_GROUPS) or lengths[:last] != _UUID_GROUPS[:last] or lengths[0] != 8:
        return ""
    return "uuid-prefix" if lengths[last] <= _UUID_GROUPS[last] else ""


def _pci(text: str) -> str:
    """Return NVML's form, with 8 domain digits, of a lower-case [dddd|dddddddd:]bb:dd.f, else ""."""
    domain, _, address = ("0000:" + text if text.count(":") == 1 else text).partition(":")
    if len(domain) not in (4, 8) or len(address) != 7 or address[2] + address[5] != ":.":
        return ""
    if (domain + address[:2] + address[3:5] + address[6]).strip(_HEX):
        return ""
    return domain.rjust(8, "0") + ":" + address


def is_short_uuid(text: str) -> bool:
    """Return whether a name is a UUID of which too few digits are written."""
    digits = text[4:].lower() if text[:4].upper() == "GPU-" else "-"
    return len(digits) < _UUID_GROUPS[0] and not digits.strip(_HEX)
