"""docs/errors.md lists every sentence of the source with its exit code, and none that is not there any more."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from gpuhook import prestart
from gpushim.create import create
from gpushim.ground.errors import for_engines
from unit.sentences import TOP, Sentence, collected

PAGE = (TOP / "docs/errors.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (`.*?`+) \| (.*?) \| (.*?) \|$", re.MULTILINE)
# A row may leave the end of a sentence out: what follows one of these.
ENDS = (";", ",", ":", " (", " [[")
# What a program passes on: the sentence of another place of the source, or of the kernel.
PASSED_ON = {
    "plugin/gpuplugin/explain.py: refusal['sentence']",
    "plugin/gpuplugin/mps/supervisor.py: found['error']['sentence']",
    "plugin/gpuplugin/allocation/offer.py: snapshot['error']['sentence']",
    "plugin/gpuplugin/snapshot/node_requests.py: str(found.get('sentence'))",
    "hook/gpuhook/live/systemd.py: error.strerror",
    "hook/gpuhook/live/systemd.py: f\"{member.rpartition('.')[2]}: {name or 'an unknown error'}\"",
    "shim/gpushim/cdi/text.py: str(error)",
    "shim/gpushim/cdi/text.py: f'{shown} {error}'",
    "shim/gpushim/cdi/generate/write.py: inventory['error']['sentence']",
    "shim/gpushim/cli/cdi/transform.py: f\"{('stdin' if source == '-' else source)}: {error}\"",
    "shim/gpushim/nvidia/container_cli.py: inventory['error']['sentence']",
    "shim/gpushim/cli/device_plugin.py: str(answer['error'])",
    "shim/gpushim/cli/explain.py: report['refusal']['sentence']",
    "shim/gpushim/cli/info.py: inventory['error']['sentence']",
    "shim/gpushim/cli/list.py: inventory['error']['sentence']",
    "shim/gpushim/cli/ps.py: inventory['error']['sentence']",
    "shim/gpushim/cli/explain_pod.py: inventory['error']['sentence']",
    "shim/gpushim/cli/explain_pod.py: refusal['sentence']",
    "shim/gpushim/cli/refresh.py: snapshot['error']['sentence']",
    "shim/gpushim/cli/system.py: '; '.join(notes)",
    "shim/gpushim/engines/settings/rewrite.py: f'{path} {reason}'",
    "shim/gpushim/inventory/renew.py: output",
    "shim/gpushim/inventory/failure.py: str(failure['sentence'])",
    "shim/gpushim/nvidia/migrate/device_plugin.py: str(error)",
    "shim/gpushim/nvidia/migrate/device_plugin.py: problem",
    "shim/gpushim/nvidia/migrate/migrate_plugin.py: problem",
    "shim/gpushim/config/policy.py: f'{path}: {problem}'",
}


def rows() -> list[tuple[int, str]]:
    """The code and the sentence of each row."""
    return [(int(code), cell.strip("`").strip().replace("\\|", "|")) for code, cell, _, _ in ROW.findall(PAGE)]


def says(row: tuple[int, str], sentence: Sentence) -> bool:
    code, text = row
    if sentence.code not in (0, code) or not sentence.text.startswith(text):
        return False
    rest = sentence.text[len(text) :]
    return not rest or rest.startswith(ENDS)


@pytest.fixture(scope="module")
def found() -> tuple[list[Sentence], list[str]]:
    return collected()


@pytest.fixture
def sentences(found: tuple[list[Sentence], list[str]]) -> list[Sentence]:
    return found[0]


def test_the_source_has_been_read(sentences: list[Sentence]) -> None:
    assert len(sentences) > 200
    assert {"shim/gpushim/launcher", "hook/gpuhook/live/live.py", "plugin/gpuplugin/allocation/allocation.py"} <= {
        each.place.partition(":")[0] for each in sentences
    }


def test_no_sentence_is_missing(sentences: list[Sentence]) -> None:
    table = rows()
    missing = [each for each in sentences if not any(says(row, each) for row in table)]
    assert not missing, "\n".join(f"{each.place}: {each.code} {each.text}" for each in missing)


def test_no_row_is_stale(sentences: list[Sentence]) -> None:
    stale = [row for row in rows() if not any(says(row, each) for each in sentences)]
    assert not stale


def test_each_row_says_one_thing() -> None:
    table = rows()
    assert len(table) == len(re.findall(r"^\| \d", PAGE, re.MULTILINE))
    for section in PAGE.split("\n## "):
        cells = [row[:2] for row in ROW.findall(section)]
        assert len(cells) == len(set(cells))
    assert all(len(re.findall("[A-Za-z]+", text)) >= 1 for _, text in table)
    assert all(cause and fix for _, _, cause, fix in ROW.findall(PAGE))


def test_what_is_passed_on_is_known(found: tuple[list[Sentence], list[str]]) -> None:
    """A new expression here means that the collector does not see a sentence."""
    assert {unquoted(text) for text in found[1]} == {unquoted(text) for text in PASSED_ON}


def unquoted(text: str) -> str:
    """An expression without its quotation marks, which ast.unparse chooses differently from Python to Python."""
    return re.sub(r"[\\'\"]", "", text)


def test_no_sentence_has_words_that_engines_look_for(sentences: list[Sentence]) -> None:
    for text in [text for _, text in rows()] + [each.text for each in sentences]:
        assert for_engines(text) == text


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT])
def test_what_the_kernel_says_is_said_to_engines_in_other_words(
    number: int, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sentence = f"/a cannot be read: {os.strerror(number)}; {os.strerror(number).lower()}"
    create.complain(sentence, str(tmp_path / "log"), "json")
    prestart.say(sentence)
    for said in (*capfd.readouterr().err.splitlines(), (tmp_path / "log").read_text()):
        assert "/a cannot be read: " in said
        assert os.strerror(number).lower() not in said.lower()


@pytest.mark.parametrize(("text", "end"), [("... is gone", "; install it"), ("... is gone", "")])
def test_the_end_of_a_sentence_may_be_left_out(text: str, end: str) -> None:
    assert says((127, text), Sentence(text + end, 127, ""))
    assert not says((126, text), Sentence(text + end, 127, ""))
    assert not says((127, text[:-2]), Sentence(text + end, 127, ""))
