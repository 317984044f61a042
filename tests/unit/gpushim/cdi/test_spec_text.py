from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.cdi import spec_text
from gpushim.ground.bounds import SPEC
from gpushim.ground.errors import GpushimError
from unit.gpushim.cdi import hosts

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63) | TEXTS | st.sampled_from(["0:1", "1:0", "0", "yes", "null", "0x1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, PLAIN, max_size=3), st.sampled_from(["json", "yaml"]))
def test_what_is_written_reads_the_same(document: dict[str, Any], form: str) -> None:
    found, _ = spec_text.parse(spec_text.render(document, form).encode(), "it")
    assert found == document


def test_format_is_told_from_the_content(tmp_path: Path) -> None:
    for form in ("json", "yaml"):
        (tmp_path / "spec").write_text(spec_text.render(hosts.foreign(), form))
        assert spec_text.read(str(tmp_path / "spec")) == (hosts.foreign(), form)


def test_yaml_names_nothing_twice_by_alias() -> None:
    shared = {"env": ["A=b"]}
    assert "&" not in spec_text.render({"a": shared, "b": shared}, "yaml")


@pytest.mark.parametrize(
    ("path", "wanted", "form", "warned"),
    [
        ("", "", "yaml", False),
        ("", "json", "json", False),
        ("/x/nvidia.yaml", "", "yaml", False),
        ("/x/nvidia.json", "", "json", False),
        ("/x/nvidia.json", "yaml", "json", True),
        ("/x/nvidia.yml", "", "yaml", True),
        ("/x/nvidia", "json", "json", True),
    ],
)
def test_extension_decides_over_the_option(path: str, wanted: str, form: str, warned: bool) -> None:
    found, warning = spec_text.form_of(path, wanted)
    assert (found, bool(warning)) == (form, warned)


@pytest.mark.parametrize(
    ("data", "says"), [(b"{", "JSON"), (b"a: [", "not YAML"), (b"a: \xff", "UTF-8"), (b"a" * (SPEC + 1), "4 MiB")]
)
def test_file_that_is_no_spec_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "spec").write_bytes(data)
    with pytest.raises(GpushimError, match=says):
        spec_text.read(str(tmp_path / "spec"))


def test_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(GpushimError, match="/none cannot be read: No such file"):
        spec_text.read("/none")


def test_json_is_one_line() -> None:
    assert json.loads(spec_text.render(hosts.foreign(), "json")) == hosts.foreign()
    assert spec_text.render(hosts.foreign(), "json").count("\n") == 1
