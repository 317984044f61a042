"""Texts of daemon.json: what is taken and refused, what an edit leaves, and what dockerd would not start with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushim.engines import docker
from gpushim.engines.docker import daemon_json
from gpushim.engines.settings.setup import Options
from gpushim.ground.errors import GpushimError

PATH = "/etc/docker/daemon.json"
DATA = Path(__file__).parents[4] / "data" / "engines" / "docker"
BOM = b"\xef\xbb\xbf"
OURS = Options("/usr/bin/gpushim-runtime", default=True, cdi=True)
REFUSED = {
    "array.json": "line 1: it is not an object",
    "bad-escape.json": "line 1: it is not JSON (Invalid \\escape",
    "block-comment.json": "line 2: it is not JSON (",
    "comments.json": "line 2: it is not JSON (",
    "cut-off.json": "line 4: it is not JSON (",
    "deep-object.json": "line 1: it is nested too deeply",
    "deep.json": "line 1: it is nested too deeply",
    "duplicate.json": "line 4: the name debug occurs twice",
    "escaped-duplicate.json": "line 2: the name debug occurs twice",
    "hash-comment.json": "line 1: it is not JSON (",
    "latin-1.json": "line 2: it is not UTF-8",
    "missing-comma.json": "line 3: it is not JSON (",
    "nan.json": "line 2: it is not JSON (NaN)",
    "nested-duplicate.json": "line 4: the name a occurs twice",
    "newline-in-string.json": "line 2: it is not JSON (Invalid control character",
    "nul.json": "line 2: it is not JSON (",
    "python.json": "line 1: it is not JSON (",
    "single-quotes.json": "line 1: it is not JSON (",
    "trailing-comma.json": "it is not JSON (",
    "two-values.json": "line 2: it is not JSON (",
    "utf-16.json": "line 1: it is not UTF-8",
    "word.json": "line 1: it is not an object",
}
TAKEN = sorted({path.name for path in DATA.glob("*.json")} - {*REFUSED})


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(GpushimError) as caught:
        daemon_json.parse((DATA / name).read_bytes(), PATH)
    assert str(caught.value).startswith(f"{PATH}, line ")
    assert REFUSED[name] in str(caught.value)
    assert str(caught.value).endswith("; correct it first")


@pytest.mark.parametrize("name", TAKEN)
def test_the_layout_that_stays(name: str) -> None:
    old = (DATA / name).read_bytes()
    wished = daemon_json.parse(old, PATH)
    new = daemon_json.write(wished, old)
    assert list(daemon_json.parse(new, PATH).items()) == list(wished.items())
    assert new.endswith(b"\n") == (not old.replace(BOM, b"").strip() or old.endswith(b"\n"))
    assert new.startswith(BOM) == old.startswith(BOM)
    assert b"\r\n" not in new or new.count(b"\n") == new.count(b"\r\n")


@pytest.mark.parametrize("name", ["bom.json", "crlf.json", "features.json", "one-line.json", "tabs.json"])
def test_what_is_laid_out_as_usual_stays_byte_for_byte(name: str) -> None:
    old = (DATA / name).read_bytes()
    assert daemon_json.write(daemon_json.parse(old, PATH), old) == old


def test_numbers_keep_their_spelling() -> None:
    old = b'{\n  "odd": [\n    1.0,\n    1e3,\n    -0,\n    1E400,\n    ' + b"9" * 5000 + b"\n  ]\n}\n"
    assert daemon_json.write(daemon_json.parse(old, PATH), old) == old


words = st.sampled_from(["runtimes", "features", "default-runtime", "nvidia", "path", "cdi", "a", "é", "\\", "\n"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=150)
@given(
    data=st.dictionaries(words | st.text(max_size=4), values, max_size=5),
    style=st.sampled_from([None, 0, 1, 2, 4, "\t", "\r"]),
    ascii_only=st.booleans(),
)
def test_what_is_added_to_any_object_can_be_taken_out(data: dict[str, Any], style: Any, ascii_only: bool) -> None:
    text = json.dumps(data, indent="  " if style == "\r" else style, ensure_ascii=ascii_only)
    old = (text.replace("\n", "\r\n") if style == "\r" else text).encode("utf-8", "surrogatepass")
    try:
        before = daemon_json.parse(old, PATH)
    except GpushimError:
        return  # half a surrogate pair, unescaped
    assert daemon_json.parse(daemon_json.write(before, old), PATH) == before
    if daemon_json.mistyped(before) or "nvidia" in (before.get("runtimes") or {}):
        return
    added = daemon_json.add(before, OURS)
    assert daemon_json.parse(daemon_json.write(added, old), PATH) == added
    left = daemon_json.without_runtimes(added, ["nvidia"])
    ours = ("runtimes", "default-runtime", "features")
    assert {key: value for key, value in left.items() if key not in ours} == {
        key: value for key, value in before.items() if key not in ours
    }
    assert (left.get("runtimes") or {}) == (before.get("runtimes") or {})
    assert left["features"] == {**(before.get("features") or {}), "cdi": True}


@pytest.mark.parametrize(
    ("old", "lost"),
    [
        ({"runtimes": {"nvidia": {"path": "/x/gpushim-runtime"}}, "default-runtime": "nvidia"}, False),
        ({"runtimes": {}, "features": None}, False),
        ({"debug": True}, True),
        ({"runtimes": {"nvidia": {"path": "/x/gpushim-runtime", "runtimeArgs": []}}}, True),
        ({"runtimes": {"nvidia": {"path": "/theirs"}}}, True),
        ({"runtimes": {"nvidia": {"path": "/theirs"}}, "default-runtime": "nvidia"}, True),
        ({"default-runtime": "crun"}, True),
    ],
)
def test_what_would_be_lost(old: dict[str, Any], lost: bool) -> None:
    assert daemon_json.lost(old, {}) is lost


def test_the_command_for_a_host_without_gpushim(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    ours = daemon_json.add({"debug": True, "runtimes": {"kata": {"path": "/k"}}}, OURS)
    path.write_bytes(BOM + daemon_json.write(ours, None))
    for command in daemon_json.by_hand(str(path), ["nvidia"], f"{path}.copy", []):
        subprocess.run(command, shell=True, check=True)
    assert daemon_json.parse(Path(f"{path}.copy").read_bytes(), PATH) == ours
    assert json.loads(path.read_text()) == daemon_json.without_runtimes(ours, ["nvidia"])


WRONG = {
    '{"runtimes": []}': "runtimes is not an object",
    '{"runtimes": {"nvidia": "/usr/bin/x"}}': "runtimes.nvidia is not an object",
    '{"runtimes": {"nvidia": {"path": 5}}}': "runtimes.nvidia.path is not a string",
    '{"runtimes": {"runc": {"path": "/x"}}}': "the name runc under runtimes is Docker's own",
    '{"Runtimes": {"a": {"path": "/x"}}}': "Runtimes is written runtimes",
    '{"features": {"cdi": "true"}}': "features.cdi is neither true nor false",
    '{"features": []}': "features is not an object",
    '{"default-runtime": 5}': "default-runtime is not a string",
    '{"default-runtime": "nvida"}': "there is no runtime nvida, which is the default-runtime",
}
WELL = (
    *("", " ", "{}", '{"runtimes": null}', '{"runtimes": {"n": null}}', '{"runtimes": {"n": {}}}'),
    *('{"default-runtime": ""}', '{"default-runtime": "io.containerd.kata.v2"}', '{"features": {"cdi": null}}'),
    *('{"default-runtime": "n", "runtimes": {"n": {"path": "/x"}}}', '{"default-runtime": "line"}'),
)


@pytest.mark.parametrize("text", WRONG)
def test_what_gpushim_sees_itself(text: str) -> None:
    assert docker.wrong(text.encode(), PATH, "") == f"{PATH}: {WRONG[text]}"


@pytest.mark.parametrize("text", WELL)
def test_what_is_well(text: str) -> None:
    assert docker.wrong(text.encode(), PATH, "", ("line",)) == docker.wrong(None, PATH, "") == ""


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("unable to configure the Docker daemon with file /dev/stdin: no log-drver", "dockerd says: no log-drver"),
        ("Status: unknown flag: --validate\nSee 'dockerd --help'., Code: 125", ""),
        ("Segmentation fault", ""),
    ],
)
def test_what_dockerd_says(tmp_path: Path, says: str, told: str) -> None:
    dockerd = tmp_path / "dockerd"
    dockerd.write_text(
        f"#!/bin/sh\n[ \"$*\" = '--validate --config-file /dev/stdin' ] || exit 0\ncat >&2 <<'E'\n{says}\nE\nexit 1\n"
    )
    dockerd.chmod(0o755)
    refusal = docker.wrong(b'{"log-drver": "x"}', PATH, str(dockerd))
    assert refusal == (f"{PATH}: {told}" if told else "")
