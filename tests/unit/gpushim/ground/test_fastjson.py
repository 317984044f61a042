from __future__ import annotations

import builtins
import importlib.util
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.ground import fastjson
from gpushim.ground.errors import BUNDLE, GpushimError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


@given(DOCUMENTS, st.booleans(), st.booleans())
def test_reads_what_json_reads(document: Any, ascii_only: bool, own: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=2 if ascii_only else None)
    data = text.encode("utf-8", "surrogatepass" if ascii_only else "strict")
    assert fastjson.loads(data, is_own=own) == json.loads(text)


@given(DOCUMENTS)
def test_writes_what_json_writes(document: Any) -> None:
    assert fastjson.dumps(document) == json.dumps(document, separators=(",", ":"))


@given(st.text(alphabet='{}[]:,"\\u0123456789abcdeE+-.truefalsn \n\x00\ud800', max_size=40))
def test_refuses_exactly_what_json_refuses(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=fastjson._constant)
    except ValueError:
        with pytest.raises(GpushimError):
            fastjson.loads(text.encode("utf-8", "surrogatepass"))
        return
    assert json.loads(fastjson.dumps(fastjson.loads(text.encode()))) == expected


@pytest.mark.parametrize("number", ["1.0", "1e3", "-0", "1E+2", "1e400", "0.10", "12345678901234567890123", "-0.0"])
def test_a_number_keeps_its_spelling(number: str) -> None:
    text = f'{{"x":[{number},"\\u00e9"],"y":{number}}}'
    assert fastjson.dumps(fastjson.loads(text.encode())) == text


def test_what_cannot_be_written_is_refused() -> None:
    deep: Any = fastjson.loads(b"1e3")
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(GpushimError, match="nested too deeply"):
        fastjson.dumps(deep)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "Expecting value"),
        (b"[1", "Expecting ',' delimiter: line 1 column 3"),
        (b'{"a":1', "Expecting ',' delimiter"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b"{} x", "something follows the value at character 2"),
        (b'["\xff"]', "not UTF-8 at byte 2"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"1" * 5000 + b"]", "limit"),
        (b'["\n"]', "Invalid control character"),
    ],
)
def test_says_what_is_wrong(data: bytes, complaint: str) -> None:
    with pytest.raises(GpushimError) as caught:
        fastjson.loads(data, "/b/config.json")
    assert complaint in str(caught.value)
    assert "/b/config.json" in str(caught.value)
    assert caught.value.exit_code == BUNDLE


def test_does_without_the_c_half(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _load_without_c(monkeypatch)
    text = '{"a":[1,-0,1e3,"\\u00e9\\ud800"],"b":{"c":null}}'
    assert slow.dumps(slow.loads(text.encode())) == text
    for broken in (b"[1", b"{} x", b'{"a":NaN}', b""):
        with pytest.raises(Exception, match="not valid JSON"):
            slow.loads(broken)


def _load_without_c(monkeypatch: pytest.MonkeyPatch) -> Any:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "_json":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    spec = importlib.util.spec_from_file_location("slow_fastjson", fastjson.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(builtins, "__import__", without)
    spec.loader.exec_module(module)
    monkeypatch.undo()
    return module


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":1}', '{"a":{"b":[],"b":[]}}', '[{"\\u0061":1,"a":2}]', '{"a":1,"b":2,"a":-0}']
)
def test_a_key_twice_is_refused(text: str) -> None:
    with pytest.raises(GpushimError, match=r'has the key "[ab]" twice in one object'):
        fastjson.loads(text.encode())
