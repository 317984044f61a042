"""What the commands of `nvidia-container-cli` read from their options alike, and the words of its errors."""

from __future__ import annotations

import pytest

from gpushim.ground.errors import (
    BUNDLE,
    DRIVER,
    FAILED,
    INVENTORY,
    REQUEST,
    REQUIREMENT,
    ROOTFS,
    USAGE,
    GpushimError,
)
from gpushim.nvidia.container_cli import cli_options as cli
from gpushim.nvidia.container_cli.getopt import parse


def test_global_options_end_at_the_command() -> None:
    words = ["--load-kmods", "--user", "--debug=/dev/stderr", "-l", "x", "configure", "--pid=5", "-d", "0", "/r"]
    given, rest = parse(words, cli.GLOBAL, in_order=True)
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
    assert cli.format_error(GpushimError("x: y", code)) == f"nvidia-container-cli: {kind}: x: y"
    assert cli.format_error(OSError("z")) == "nvidia-container-cli: mount error: z"


@pytest.mark.parametrize(("root", "driver", "fits"), [("/", "/", True), ("/d/", "/d", True), ("/d", "/", False)])
def test_another_driver_is_refused(root: str, driver: str, fits: bool) -> None:
    if fits:
        cli.check_root([("root", root)], driver)
    else:
        with pytest.raises(GpushimError, match=r"set \[driver\] root"):
            cli.check_root([("root", root)], driver)


def test_words_of_repeated_options() -> None:
    given = [("device", "0, 1,,"), ("x", "9"), ("device", "2")]
    assert cli.collect_words(given, "device") == ["0", "1", "2"]
