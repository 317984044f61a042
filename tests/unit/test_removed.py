"""What stays after a removal: which runtime it becomes, and which containers it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from e2e import recorder
from gpuplugin.node import owners
from unit.gpushim.calls import SHELLS, TOP
from unit.gpushim.create.launcher_words import WORDS

SCRIPT = TOP / "shim/gpushim/removed"
DEBIAN = TOP / "packaging/deb/debian"
ASKS, PLAIN = '{"env":["NVIDIA_VISIBLE_DEVICES=0"]}', '{"env":["A=B"]}'
SENTENCE = "gpushim: gpushim was removed, and this container may ask for a GPU; install gpushim, or let another "
# Arguments, and whose config.json counts; of others' calls none does.
CALLS: dict[tuple[str, ...], str] = {
    ("create", "x"): ".",
    ("run", "x"): ".",
    ("restore", "--bundle", "A", "x"): "A",
    ("--root", "/r", "--log", "log", "--log-format", "json", "create", "--bundle", "A", "--pid-file", "p", "x"): "A",
    ("--systemd-cgroup", "--log=log", "create", "-b", "A", "--no-pivot", "x"): "A",
    ("create", "--bundle=A", "x"): "A",
    ("exec", "x", "create"): "",
    ("kill", "run", "9"): "",
    ("delete", "--force", "x"): "",
    ("update", "--resources", "-", "x"): "",
    ("--version",): "",
    ("features",): "",
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorder.build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def top(tmp_path: Path, runtime: Path) -> Path:
    """The root of a host from which gpushim's programs were removed, with bundles."""
    (tmp_path / "run/gpushim").mkdir(parents=True)
    (tmp_path / "run/gpushim/runtime").write_text(f"{runtime}\n")
    (tmp_path / "run/gpushim/triggers").write_text("DOCKER_RESOURCE_GPU\n")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "A").mkdir()
    removal(tmp_path, f"leave_script <<'END'\n{SCRIPT.read_text()}END\n")
    for name in ("runtime", "hook"):
        script = tmp_path / f"usr/bin/gpushim-{name}"
        script.write_text(script.read_text().replace("/run/gpushim-removed", f"{tmp_path}/run/gpushim-removed"))
    return tmp_path


def removal(top: Path, line: str) -> None:
    text = f"set -e\nDPKG_ROOT={top}\n{(DEBIAN / 'left.sh').read_text()}\n{line}"
    subprocess.run(["/bin/sh", "-c", text], check=True, timeout=20)


def call(top: Path, *args: str, name: str = "gpushim-runtime", feed: str = "") -> str | None:
    """Return what it refuses with; None if the low-level runtime got the same call, or the hook ended."""
    record = top / "record.json"
    record.unlink(missing_ok=True)
    command = [str(top / "usr/bin" / name), *args]
    options = {"env": {"RECORD": str(record)}, "capture_output": True, "text": True, "timeout": 20}
    done = subprocess.run(command, cwd=top, input=feed, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        assert not record.exists()
        return str(done.stderr)
    assert name == "gpushim-hook" or recorder.read(record)["argv"][1:] == [*args]
    return None


@pytest.mark.parametrize("args", CALLS, ids=" ".join)
def test_a_container_that_asks_is_refused_and_all_else_reaches_its_runtime(top: Path, args: tuple[str, ...]) -> None:
    """With the sentence where engines look, too."""
    for bundle in (".", "A"):
        (top / bundle / "config.json").write_text(ASKS if bundle == CALLS[args] else PLAIN)
    said = call(top, *args)
    if CALLS[args]:
        assert said is not None
        assert said.startswith(SENTENCE)
        if {"log", "--log=log"} & {*args}:
            assert json.loads((top / "log").read_text())["msg"] == said.rstrip()
        (top / CALLS[args] / "config.json").write_text(PLAIN)
        said = call(top, *args)
    assert said is None


def test_it_has_the_launcher_s_words() -> None:
    """But for the hook's, which decides by itself when it is called."""
    texts = [(TOP / "shim/gpushim" / name).read_text() for name in ("launcher", "removed")]
    searches = [re.search(r"(?s)grep -Fqs(.*?)-- ", text) for text in texts]
    launcher, script = (re.sub(r"\\\n +", "", search[1]) for search in searches if search)
    assert launcher.replace(" -e gpushim-hook", "") == script


TEXTS = {**WORDS, '{"env":["DOCKER_RESOURCE_GPU=1"]}': True, f"\0{ASKS}": True}


@pytest.mark.parametrize(("text", "asks"), TEXTS.items(), ids=range(len(TEXTS)))
def test_what_may_be_a_request_is_refused(top: Path, text: str, asks: bool) -> None:
    (top / "config.json").write_text(text)
    assert (call(top, "create", "x") is not None) is asks


def test_a_bundle_that_cannot_be_read_is_refused(top: Path) -> None:
    assert call(top, "create", "x") is not None


def test_what_a_user_can_name_leads_to_no_other_bundle(top: Path) -> None:
    (top / "A/config.json").write_text(PLAIN)
    (top / "config.json").write_text(ASKS)
    assert call(top, "create", "A") is not None
    state = {"id": "A", "bundle": str(top), "annotations": {"bundle": f"{top}/A", "x": f'"bundle":"{top}/A"'}}
    assert call(top, "prestart", name="gpushim-hook", feed=json.dumps(state)) is not None


@pytest.mark.parametrize(
    ("args", "text", "asks"),
    [
        (["prestart"], ASKS, True),
        (["prestart"], '{"hooks":{"prestart":[{"path":"/usr/bin/gpushim-hook"}]}}', False),
        (["prestart", "--ldcache=/x"], PLAIN, True),  # of a CDI spec
        (["prestart"], None, True),
    ],
)
def test_as_the_hook_it_ends_where_nothing_is_asked_for(
    top: Path, args: list[str], text: str | None, asks: bool
) -> None:
    if text:
        (top / "A/config.json").write_text(text)
    for indent in (None, 2):
        state = json.dumps({"ociVersion": "1", "id": "x", "bundle": f"{top}/A"}, indent=indent)
        assert (call(top, *args, name="gpushim-hook", feed=state) is not None) is asks


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_understands_it(top: Path, shell: str) -> None:
    script = top / "usr/bin/gpushim-hook"
    (top / "A/config.json").write_text(ASKS)
    for bundle, code in ((f"{top}/A", 1), (f"{top}", 0)):
        (top / "config.json").write_text(PLAIN)
        words = [*SHELLS[shell], str(script), "prestart"]
        done = subprocess.run(words, input=json.dumps({"bundle": bundle}), text=True, check=False, timeout=20)
        assert done.returncode == code


def test_a_runtime_that_leads_to_it_is_none(top: Path) -> None:
    """It would execute itself without end."""
    (top / "runc").symlink_to("usr/bin/gpushim-runtime")
    (top / "run/gpushim-removed/runtime").write_text(f"{top}/runc\n")
    script = top / "usr/bin/gpushim-runtime"
    script.write_text(re.sub(r"/usr/(local/\*bin|\*bin|libexec/crio)/", "/nowhere/", script.read_text()))
    said = "gpushim: gpushim was removed, and neither runc nor crun is installed; install one of them\n"
    assert call(top, "state", "x") == said
    (top / "run/gpushim-removed/runtime").unlink()
    assert call(top, "state", "x") == said


def test_the_next_boot_takes_all_of_it(top: Path) -> None:
    (top / "usr/bin/other").touch()
    tmpfiles = ["/usr/bin/systemd-tmpfiles", f"--root={top}", "--remove"]
    subprocess.run([*tmpfiles], check=True, timeout=20)
    assert len([*top.glob("usr/bin/*")]) == 3
    subprocess.run([*tmpfiles, "--boot"], check=True, timeout=20)
    assert [path.name for path in top.glob("usr/bin/*")] == ["other"]
    assert [*top.glob("etc/tmpfiles.d/*")] == []


def test_removed_twice_and_installed_again(top: Path, runtime: Path) -> None:
    """What the first removal has kept stays; an installation takes all but the programs, which it has replaced."""
    removal(top, f"leave_script <<'END'\n{SCRIPT.read_text()}END\n")
    assert (top / "run/gpushim-removed/runtime").read_text() == f"{runtime}\n"
    removal(top, "take_script")
    assert [*top.glob("etc/tmpfiles.d/*"), *top.glob("run/gpushim-removed")] == []


def test_an_installation_on_a_node_knows_it() -> None:
    assert SCRIPT.read_bytes().startswith(owners.LEFT)
