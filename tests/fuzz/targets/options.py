"""Command lines: argp against the C library's getopt_long, and each reader of options against its own word."""

from __future__ import annotations

import ctypes
from typing import Sequence

from fuzz.oracles import host, refused
from gpuhook.loader.options import Options
from gpuhook.nvidia import cdi_hook, container_cli_configure
from gpushim.ground.errors import GpushimError
from gpushim.nvidia.container_cli import cli_options as cli
from gpushim.nvidia.container_cli import getopt

LENGTH = 512
POLICY = host()["policy"]
TAKES = {getopt.NO: 0, getopt.REQUIRED: 1, getopt.OPTIONAL: 2}
COMMANDS = (cli.GLOBAL, cli.COMMANDS["configure"])
FIRST = 1000  # of the numbers that stand for long options
LIBRARY = ctypes.CDLL(None)


class Option(ctypes.Structure):
    """struct option of getopt_long(3)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("has_arg", ctypes.c_int),
        ("flag", ctypes.c_void_p),
        ("val", ctypes.c_int),
    )


def seeds() -> list[bytes]:
    """Return command lines of engines and of specs; a word per line."""
    lines = [
        "--load-kmods --debug=/d configure --ldconfig=@/sbin/ldconfig --device=all --compute --utility --pid=7 /r",
        "configure -p 7 -d 0,1 -d MIG-1 -r cuda>=12 --imex-channel=3 --mig-config=all --no-cgroups -cu /r",
        *("-k -d x list --lib -- -x", "-kVn", "--us", "--user=0", "-u0", "--no-p", "--", "-", "configure --pid"),
        "--rootfs /r --lib libcuda.so.1=/l/x --link a::/b --gpu 0=x --cover /e::/proc/x --profile-mask 0x3",
        *(
            "--link a::b --folder /x,/y --mode 755 --path /p --host-driver-version=535",
            "--driver --cuda 12.2 --log /l",
        ),
    ]
    return [line.replace(" ", "\n").encode() for line in lines]


def one(data: bytes) -> None:
    """Read a line by each reader."""
    text = data.decode("utf-8", "surrogateescape")
    if "\0" in text:
        return
    words = text.split("\n") if text else []
    for options in COMMANDS:
        for in_order in (False, True):
            try:
                found = getopt.parse(words, options, in_order)
            except GpushimError as error:
                refused(error)
                found = None
            expected = _getopt(words, options, in_order)
            assert found == expected, (found, expected)
            if found and options is COMMANDS[1]:
                _asked(found[0])
    cli.find_command(words)
    for reader in (Options, _hook):
        try:
            reader(words)
        except GpushimError as error:
            assert str(error)


def _hook(words: list[str]) -> None:
    cdi_hook.parse(words, ("link", "folder", "path", "mode", "host-driver-version"))


def _asked(given: getopt.OptionValues) -> None:
    try:
        wanted = container_cli_configure.request(given, POLICY)
        assert len(set(wanted.imex)) == len(wanted.imex)
        container_cli_configure._pid(given)
    except GpushimError as error:
        refused(error)


def _getopt(
    words: Sequence[str], options: getopt.Options, in_order: bool
) -> tuple[getopt.OptionValues, list[str]] | None:
    """Read words as the C library does; None if it complains."""
    names = list(options)
    table = (Option * (len(names) + 1))(
        *(Option(name.encode(), TAKES[options[name][1]], None, FIRST + at) for at, name in enumerate(names)), Option()
    )
    letters = {options[name][0]: name for name in names if options[name][0]}
    # The colon in front: "?" is an option here, and a missing value must look like something else.
    short = "+:" if in_order else ":"
    short += "".join(letter + ":" * TAKES[options[name][1]] for letter, name in letters.items() if letter != "?")
    encoded = [b"program", *(word.encode("utf-8", "surrogateescape") for word in words)]
    argv = (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)
    index, value = ctypes.c_int.in_dll(LIBRARY, "optind"), ctypes.c_char_p.in_dll(LIBRARY, "optarg")
    wrong = ctypes.c_int.in_dll(LIBRARY, "optopt")
    index.value = 0
    given: getopt.OptionValues = []
    while (code := LIBRARY.getopt_long(len(encoded), argv, short.encode(), table, None)) != -1:
        if code == ord("?") and wrong.value == ord("?"):
            given.append((letters["?"], ""))
        elif code in (ord("?"), ord(":")):
            return None
        else:
            name = names[code - FIRST] if code >= FIRST else letters[chr(code)]
            text = value.value if options[name][1] != getopt.NO else None
            given.append((name, (text or b"").decode("utf-8", "surrogateescape")))
    rest = [argv[at] or b"" for at in range(index.value, len(encoded))]
    return given, [word.decode("utf-8", "surrogateescape") for word in rest]
