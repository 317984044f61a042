from __future__ import annotations

from typing import Any

import pytest

from gpushim.cdi import yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("{}", {}),
        ("a: 1\nb: true\nc: ~\nd: 1.5\n", {"a": 1, "b": True, "c": None, "d": 1.5}),
        ("a: 0.5.0", {"a": "0.5.0"}),
        ("a: 2001-01-01", {"a": "2001-01-01"}),
        ("a: '1'", {"a": "1"}),
        ("a: !!str 1", {"a": "1"}),
        ("a: 0666", {"a": 0o666}),
        ("[a, [b]]", ["a", ["b"]]),
        ("a: &x 1\nb: *x", {"a": 1, "b": 1}),
        ("<<: 1", {"<<": 1}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("'\\u00e9': ü", {"\\u00e9": "ü"}),
    ],
)
def test_yaml_as_plain_data(text: str, value: Any) -> None:
    assert yaml.loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "is not YAML"),
        ("\tx", "is not YAML"),
        (b"\xff\xfe", "is not UTF-8 at byte 0"),
        ("a: !!python/object/apply:os.system [x]", "the tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("a: !!binary aGk=", "the tag"),
        ("a: !x {}", "the tag '!x'"),
        ("a: 1\na: 2", "the key 'a' twice"),
        ("1: 2", "the key 1, which is not a string; put it in quotes"),
        ("off: 2", "the key False, which is not a string; put it in quotes"),
        ("a:\n\tb: 1", "is not YAML: a tab where only blanks can be, line 2, column 1"),
        ("[a]: 2", "the key ['a']"),
        ("a: 1\n---\nb: 1", "more than one document"),
        ("a: *x", "is not YAML: found undefined alias|the alias 'x', which names nothing"),
        ("a: &x [*x]", "the alias 'x', which names nothing before it"),
        ("a: &x 1\nb: [" + "*x," * 65 + "]", "more than 64 aliases"),
        ("[" * 40 + "]" * 40, "nested too deeply"),
        ("[" * 100000, "is not YAML|nested too deeply"),
        ("a: " + "1" * 5000, "not a usable number"),
        ("a: " + "1" * 5000 + ".5", "not a usable number"),
    ],
)
def test_yaml_beyond_plain_data_is_refused(text: str | bytes, complaint: str) -> None:
    with pytest.raises(yaml.YamlError) as caught:
        yaml.loads(text if isinstance(text, bytes) else text.encode())
    assert any(part in str(caught.value) for part in complaint.split("|"))
    assert len(str(caught.value)) < 300


def test_many_laughs_end_soon() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(yaml.YamlError, match="more than 64 aliases"):
        yaml.loads("\n".join(lines).encode())


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize("text", ["a:\n  token: secret: x", 'a: "secret', "a: [secret", "- secret\nb: secret"])
def test_an_error_says_where_and_not_what_is_there(monkeypatch: pytest.MonkeyPatch, loader: str, text: str) -> None:
    library = pytest.importorskip("yaml")
    monkeypatch.setattr(library, "CSafeLoader", getattr(library, loader, library.SafeLoader), raising=False)
    with pytest.raises(yaml.YamlError, match=r"is not YAML: .*, line [0-9]+, column [0-9]+$") as refused:
        yaml.loads(text.encode())
    assert "secret" not in str(refused.value)


def test_aliases_count_as_what_they_stand_for() -> None:
    found = yaml.loads(b"a: &x [1, 2]\nb: [*x, *x]")  # one, with 3 in a, and 1 + 2 x 3 in b
    yaml.check_size(found, 11)
    with pytest.raises(yaml.YamlError, match="more than 10 values"):
        yaml.check_size(found, 10)
