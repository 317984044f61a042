from __future__ import annotations

import pytest

from fuzz.targets import options
from gpushim.ground.errors import USAGE, GpushimError
from gpushim.nvidia.container_cli import getopt
from gpushim.nvidia.container_cli.cli_options import COMMANDS

LINES = (
    "", "-", "--", "--pid=5 /r", "--pid 5 /r", "-p5 /r", "-p 5 /r", "/r --pid=5", "--pid= x", "--pid -c", "--pid",
    "-p", "--compute -c", "-cup7", "--user x", "--user=0:0 x", "-u0:0 x", "-u x", "--comput --pi 3", "--comp",
    "--compute=1", "-c -- -x --pid", "- -c", "-cz", "--nope", "-k configure -c", "--us configure --", "--no-p",
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_options_are_read_as_by_the_c_library(line: str) -> None:
    options.one(line.replace(" ", "\n").encode())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--nope", "--nope is not an option here"),
        ("--comp", "--comp is ambiguous"),
        ("--compute=1", "--compute takes no value"),
        ("--pid", "--pid needs a value"),
        ("-p", "-p needs a value"),
        ("-cz", "-z is not an option here"),
    ],
)
def test_lines_that_are_wrong(line: str, text: str) -> None:
    with pytest.raises(GpushimError, match=text) as caught:
        getopt.parse(line.split(), COMMANDS["configure"])
    assert caught.value.exit_code == USAGE
