from __future__ import annotations

import pytest

from gpushim.errors import BUNDLE, DRIVER, FAILED, INVENTORY, REQUEST, REQUIREMENT, ROOTFS, GpushimError
from gpushim.nvidia import getopt
from gpushim.nvidia.getopt import NO, OPTIONAL, REQUIRED, USAGE

OPTIONS = {
    "pid": ("p", REQUIRED),
    "compute": ("c", NO),
    "compat32": ("", NO),
    "user": ("u", OPTIONAL),
    "utility": ("y", NO),
}


@pytest.mark.parametrize(
    ("line", "given", "others"),
    [
        ("", [], []),
        ("--pid=5 /r", [("pid", "5")], ["/r"]),
        ("--pid 5 /r", [("pid", "5")], ["/r"]),
        ("-p5 /r", [("pid", "5")], ["/r"]),
        ("-p 5 /r", [("pid", "5")], ["/r"]),
        ("/r --pid=5", [("pid", "5")], ["/r"]),
        ("--pid= x", [("pid", "")], ["x"]),
        ("--compute -c", [("compute", ""), ("compute", "")], []),
        ("-cyp7", [("compute", ""), ("utility", ""), ("pid", "7")], []),
        ("--user x", [("user", "")], ["x"]),
        ("--user=0:0 x", [("user", "0:0")], ["x"]),
        ("-u0:0 x", [("user", "0:0")], ["x"]),
        ("-u x", [("user", "")], ["x"]),
        ("--compu --pi 3", [("compute", ""), ("pid", "3")], []),
        ("-c -- -x --pid", [("compute", "")], ["-x", "--pid"]),
        ("- -c", [("compute", "")], ["-"]),
        ("--pid -c", [("pid", "-c")], []),
    ],
)
def test_options_as_getopt_reads_them(line: str, given: list[tuple[str, str]], others: list[str]) -> None:
    assert getopt.parse(line.split(), OPTIONS) == (given, others)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--nope", "--nope is not an option here"),
        ("--comp", "--comp is ambiguous"),
        ("--compute=1", "--compute takes no value"),
        ("--pid", "--pid needs a value"),
        ("-p", "-p needs a value"),
        ("-cz", "-z is not an option here"),
        ("--", ""),
    ],
)
def test_lines_that_are_wrong(line: str, text: str) -> None:
    if not text:
        assert getopt.parse([line], OPTIONS) == ([], [])
        return
    with pytest.raises(GpushimError, match=text) as caught:
        getopt.parse(line.split(), OPTIONS)
    assert caught.value.exit_code == USAGE


def test_global_options_end_at_the_command() -> None:
    words = ["--load-kmods", "--user", "--debug=/dev/stderr", "-l", "x", "configure", "--pid=5", "-d", "0", "/r"]
    given, rest = getopt.parse(words, getopt.GLOBAL, in_order=True)
    assert given == [("load-kmods", ""), ("user", ""), ("debug", "/dev/stderr"), ("ldcache", "x")]
    assert rest == ["configure", "--pid=5", "-d", "0", "/r"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (USAGE, "input error"),
        (REQUEST, "device error"),
        (REQUIREMENT, "requirement error"),
        (INVENTORY, "initialization error"),
        (DRIVER, "initialization error"),
        (BUNDLE, "container error"),
        (ROOTFS, "mount error"),
        (FAILED, "initialization error"),
    ],
)
def test_errors_have_their_kind(code: int, kind: str) -> None:
    assert getopt.sentence(GpushimError("x: y", code)) == f"nvidia-container-cli: {kind}: x: y"
    assert getopt.sentence(OSError("z")) == "nvidia-container-cli: mount error: z"


@pytest.mark.parametrize(("root", "driver", "fits"), [("/", "/", True), ("/d/", "/d", True), ("/d", "/", False)])
def test_another_driver_is_refused(root: str, driver: str, fits: bool) -> None:
    if fits:
        getopt.check_root([("root", root)], driver)
    else:
        with pytest.raises(GpushimError, match=r"set \[driver\] root"):
            getopt.check_root([("root", root)], driver)


def test_words_of_repeated_options() -> None:
    given = [("device", "0, 1,,"), ("x", "9"), ("device", "2")]
    assert getopt.words_of(given, "device") == ["0", "1", "2"]
