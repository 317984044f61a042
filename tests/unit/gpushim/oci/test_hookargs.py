"""The one table of the hook's options: each form of a value is written, parsed and moved by what the table says."""

from __future__ import annotations

import pytest

from gpuhook.loader import options
from gpushim.cdi import transform
from gpushim.oci import hookargs
from unit.gpushim.cdi import hosts

# For each form: the parts of a value, what the hook reads in it, and the value when /r on the host is at /h and /r in
# containers at /c.
FORMS = {
    "DIR": (["/r/a"], "/r/a", "/h/a"),
    "FILE": (["/r/a"], "/r/a", "/h/a"),
    "VERSION": (["535.1"], "535.1", "535.1"),
    "REASON": (["GPU 0 is a GeForce"], "GPU 0 is a GeForce", "GPU 0 is a GeForce"),
    "MASK": (["0x5"], 5, "0x5"),
    "MINOR=PCINAME": (["7", "0000:01:00.0"], [(7, "0000:01:00.0")], "7=0000:01:00.0"),
    "MINOR=INODE": (["7", "4711"], [(7, 4711)], "7=4711"),
    "PCINAME=BYTES": (["0000:01:00.0", "1024"], [("0000:01:00.0", 1024)], "0000:01:00.0=1024"),
    "WORD": (["wanted"], "wanted", "wanted"),
    "SONAME=PATH": (["a.so", "/r/a.so.1"], [("a.so", "/r", "a.so.1")], "a.so=/c/a.so.1"),
    "TARGET::PATH": (["/r/t", "/r/l"], [("/r/t", "/r", "l")], "/c/t::/c/l"),
    "TARGET::NODE": (["t", "/dev/d/l"], [("t", "/dev/d", "l")], "t::/dev/d/l"),
    "SOURCE::PATH": (["/r/a", "/proc/b"], [("/r/a", "/proc/b")], "/h/a::/proc/b"),
    "SOURCE::MOUNT": (["/r/a", "/r/b"], [("/r/a", "/r/b")], "/h/a::/c/b"),
}


def moved(args: list[str]) -> list[str]:
    spec = hosts.foreign()
    hook = {"hookName": "prestart", "path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart", *args]}
    spec["devices"][0]["containerEdits"]["hooks"] = [hook]
    transform.root(spec, "/r", "/h", hookargs.HOST)
    transform.root(spec, "/r", "/c", hookargs.CONTAINER)
    return list(hook["args"][2:])


@pytest.mark.parametrize("option", hookargs.OPTIONS)
def test_what_is_written_is_parsed_and_moved(option: str) -> None:
    parts, parsed, elsewhere = FORMS[hookargs.OPTIONS[option][0]]
    words = hookargs.words(option, *parts)
    assert getattr(options.Options(words), option[2:].replace("-", "_")) == parsed
    assert moved(words) == [option, elsewhere]


@pytest.mark.parametrize("form", hookargs.FORMS)
def test_an_option_is_added_in_the_table_alone(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hookargs.OPTIONS, "--added", (form, ""))
    parts, _, elsewhere = FORMS[form]
    assert moved(hookargs.words("--added", *parts)) == ["--added", elsewhere]
    assert f"[--added {form}]" in options.usage()


def test_an_unknown_option_is_not_written() -> None:
    with pytest.raises(KeyError):
        hookargs.words("--added", "/r/a")


@pytest.mark.parametrize("parts", [["/usr/lib/l"], ["t", "/usr/lib/l"]])
def test_parts_that_are_joined_already_are_written_as_they_are(parts: list[str]) -> None:
    assert hookargs.words("--link", *parts) == ["--link", "::".join(parts)]
