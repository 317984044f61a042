from __future__ import annotations

import pytest

from gpushim.errors import GpushimError
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
