from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

import gpushim
from gpushim.config import policy
from gpushim.decision import decide

TOP = Path(__file__).parents[2]
VERSION = gpushim.__version__


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("installed")
    (bundled := root / "bundled").mkdir()
    shutil.copytree(TOP / "vendor/click", bundled / "click")
    subprocess.run([TOP / "packaging/install", root, "main", bundled], check=True)
    subprocess.run([TOP / "packaging/install", root, "compat", bundled], check=True)
    subprocess.run([TOP / "packaging/install", root, "device-plugin", bundled], check=True)
    subprocess.run([TOP / "packaging/install", root, "node"], check=True)
    return root


def test_nothing_of_the_code_is_left_out(installed: Path) -> None:
    lib = installed / "usr/lib/gpushim" / VERSION
    assert (lib / "whole").read_text() == f"{VERSION}\n"
    for source in (TOP / "shim/gpushim", TOP / "hook/gpuhook", TOP / "plugin/gpuplugin"):
        wanted = {path.relative_to(source) for kind in ("*.py", "*.json") for path in source.rglob(kind)}
        found = {path.relative_to(lib / source.name) for path in (lib / source.name).rglob("*") if path.is_file()}
        assert found == wanted


@pytest.mark.parametrize("program", ["gpushim", "nvidia-ctk"])
def test_shells_complete_the_words_of_what_people_call(installed: Path, program: str) -> None:
    share, variable = installed / "usr/share", program.upper().replace("-", "_")
    for shell, path in {
        "bash": f"bash-completion/completions/{program}",
        "zsh": f"zsh/vendor-completions/_{program}",
        "fish": f"fish/vendor_completions.d/{program}.fish",
    }.items():
        assert f"_{variable}_COMPLETE={shell}_complete" in (share / path).read_text()


def test_the_last_file_is_the_last_in_every_order(installed: Path) -> None:
    """dpkg and rpm lay files down in the order of their names, and remove them in reverse."""
    lib = installed / "usr/lib/gpushim" / VERSION
    assert max(path.name for path in lib.iterdir()) == "whole"


@pytest.mark.parametrize(
    "program", [f"gpushim{name}" for name in ("", "-device-plugin", "-hook", "-node", "-runtime")]
)
def test_programs_know_their_version_and_no_checkout(installed: Path, program: str) -> None:
    text = (installed / "usr/bin" / program).read_text()
    assert f"/lib/gpushim/{VERSION}" in text
    assert "not in packages" not in text
    assert os.access(installed / "usr/bin" / program, os.X_OK)


@pytest.mark.parametrize("program", ["gpushim-hook", "nvidia-container-runtime-hook", "nvidia-cdi-hook"])
def test_hooks_wait_for_an_upgrade_that_is_going_on(installed: Path, tmp_path: Path, program: str) -> None:
    shutil.copytree(installed / "usr", tmp_path / "usr", symlinks=True)
    whole = tmp_path / "usr/lib/gpushim" / VERSION / "whole"
    whole.rename(tmp_path / "whole")
    words = [tmp_path / "usr/bin" / program, "poststop" if program != "nvidia-cdi-hook" else "--version"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as hook:
        with pytest.raises(subprocess.TimeoutExpired):
            hook.wait(0.4)
        (tmp_path / "whole").rename(whole)
        assert hook.wait(10) == 0


def test_the_runtime_waits_too(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(installed / "usr/bin", tmp_path / "bin")
    script = tmp_path / "bin/gpushim-runtime"
    text = script.read_text()
    script.write_text(text.replace("tries=300", "tries=3").replace("/usr/lib/gpushim", str(tmp_path)))
    (tmp_path / "config.json").write_text('{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]}}')
    env = {"GPUSHIM_CONFIG": str(tmp_path / "none"), "GPUSHIM_STATE": str(tmp_path)}
    done = subprocess.run([script, "create", "x"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "files of gpushim are missing; install it again" in done.stderr) == (127, True)
    (tmp_path / VERSION).mkdir()
    (tmp_path / VERSION / "whole").touch()
    done = subprocess.run([script, "create", "x"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "can't open file" in done.stderr) == (2, True)


def test_names_of_nvidia(installed: Path) -> None:
    links = {path.name: os.readlink(path) for path in (installed / "usr/bin").iterdir() if path.is_symlink()}
    assert links.pop("nvidia-container-runtime") == "gpushim-runtime"
    checkout = {path.name: os.readlink(path) for path in (TOP / "bin").iterdir() if path.is_symlink()}
    checkout.pop("gpushim-runtime")
    assert links == checkout


def uncommented(text: str) -> str:
    """Make the defaults in comments count; sentences begin with a capital letter or have no `=`."""
    return "\n".join(line[2:] if line.startswith("# ") and " = " in line else line for line in text.splitlines())


def test_the_configuration_is_all_comments_and_true(tmp_path: Path) -> None:
    text = (TOP / "packaging/config.toml").read_text()
    for name, content in (("as-is", text), ("defaults", uncommented(text))):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o644)
        assert policy.load(str(tmp_path / name)) == policy.defaults()


def test_the_configuration_has_every_key() -> None:
    lines = uncommented((TOP / "packaging/config.toml").read_text()).splitlines()
    keys = {line.partition(" = ")[0] for line in lines if " = " in line and not line.startswith("#")}
    assert keys == {key for table in cast(Any, policy.defaults()).values() for key in table}


@pytest.mark.parametrize(
    ("place", "hook"),
    [
        ("/opt/x/shim/gpushim/create.py", "/opt/x/bin/gpushim-hook"),
        ("/usr/lib/gpushim/1.2.3/gpushim/create/create.py", "/usr/bin/gpushim-hook"),
        ("/venv/lib/python3.11/site-packages/gpushim/create/create.py", "/venv/bin/gpushim-hook"),
        ("/usr/local/lib/python3.11/dist-packages/gpushim/create/create.py", "/usr/local/bin/gpushim-hook"),
    ],
)
def test_the_hook_of_this_code(monkeypatch: pytest.MonkeyPatch, place: str, hook: str) -> None:
    monkeypatch.setattr(decide, "__file__", place)
    assert decide.hook_program() == hook
