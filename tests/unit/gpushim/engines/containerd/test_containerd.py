"""`gpushim configure containerd`: a file of its own beside files of every version and kind, and one line in these."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines import containerd
from gpushim.engines.processes.running import Engine, Impostor
from unit.gpushim.engines.containerd.conftest import Call, meaning, ours, plugin, runtimes, table, tree, write
from unit.gpushim.engines.results import ok, refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("version")]

DATA = Path(__file__).parents[4] / "data" / "engines" / "containerd"
REFUSED = {
    "bad-bom.toml": "line 1: begins with a byte order mark",
    "bad-latin-1.toml": "line 2: is not UTF-8",
    "bad-duplicate-key.toml": "is not TOML: Cannot overwrite a value (at line 2",
    "bad-duplicate-table.toml": "is not TOML: Cannot declare ",
    "bad-cut-off.toml": "is not TOML: ",
    "bad-json.toml": "is not TOML: ",
    "bad-yaml.toml": "is not TOML: ",
    "bad-version-string.toml": "version is 2, not a number",
    "bad-imports.toml": "imports is not a list of paths",
    "bad-plugins.toml": "plugins is [], not a table",
    "bad-runtimes.toml": "runtimes is runc, not a table",
    "bad-runtime.toml": "nvidia is True, not a table",
    "bad-options.toml": "options is [], not a table",
    "nvidias.toml": "the runtime nvidia is /usr/bin/nvidia-container-runtime; take another",
}
TAKEN = sorted(path.name for path in DATA.glob("*.toml") if path.name not in REFUSED)
KEYS = {"version-1.toml": 1, "docker-package.toml": 1, "version-3.toml": 3}
SYSTEMD = {"kubeadm", "crlf", "tabs", "version-1", "version-3", "dotted", "inline", "quoted", "arrays"}
RUNC = {"runtime_type": "io.containerd.runc.v2"}
VERSIONS = pytest.mark.parametrize("installed", [(1, 7), (2, 1)])
Version = Callable[..., None]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str, call: Call, config: Path) -> None:
    config.write_bytes((DATA / name).read_bytes())
    before = tree(config.parent)
    assert REFUSED[name] in refused(call("containerd", config))
    assert tree(config.parent) == before


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, call: Call, config: Path, program: str, version: Version) -> None:
    """One line is added, a second call changes nothing, and --remove brings back the bytes."""
    number = KEYS.get(name, 2)
    version(*((2, 1) if number == 3 else (1, 7)))
    content = (DATA / name).read_bytes()
    config.write_bytes(content)
    ok(call("containerd", config, "--set-as-default", "--cdi"))
    runtime = runtimes(ours(config), number)["nvidia"]
    assert runtime["options"]["BinaryName"] == program
    assert runtime["runtime_type"] == "io.containerd.runc.v2"
    assert runtime["options"].get("SystemdCgroup", False) is (name.partition(".")[0] in SYSTEMD)
    cri = plugin(meaning(ours(config)), number)
    assert ("runc" in cri["containerd"]["runtimes"], "enable_cdi" in cri) == (number != 3, number != 3)
    assert cri["containerd"]["default_runtime_name"] == "nvidia"
    lines = config.read_bytes().splitlines(keepends=True)
    assert meaning(config)["imports"] == [f"{config.parent}/conf.d/99-gpushim*.toml"]
    assert b"".join(line for line in lines if b"gpushim" not in line) == content
    assert config.read_bytes().count(b"\n") - config.read_bytes().count(b"\r\n") == content.count(
        b"\n"
    ) - content.count(b"\r\n") + (b"\r\n" not in content)
    before = tree(config.parent)
    assert before["config.toml.before-gpushim"] == content
    assert "nothing to change" in ok(call("containerd", config, "--set-as-default", "--cdi"))
    assert tree(config.parent) == before
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == {"config.toml": content}
    assert os.listdir(config.parent) == ["config.toml"]


@pytest.mark.parametrize(("installed", "number"), [((1, 6), 2), ((1, 7), 2), ((2, 1), 3), ((0, 0), 2)])
def test_no_file(installed: tuple[int, int], number: int, call: Call, config: Path, version: Version) -> None:
    version(*installed)
    ok(call("containerd", config))
    assert meaning(config) == {"version": number, "imports": [f"{config.parent}/conf.d/99-gpushim*.toml"]}
    assert meaning(ours(config))["version"] == number
    # Before 2.0 a table of runtimes takes the built-in runc away.
    assert set(runtimes(ours(config), number)) == ({"runc", "nvidia"} if number == 2 else {"nvidia"})
    assert "nothing to change" in ok(call("containerd", config))
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == {}


def test_like_the_default_runtime(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "kubeadm.toml").read_bytes())
    ok(call("containerd", config))
    runtime = runtimes(ours(config))["nvidia"]
    assert runtime["base_runtime_spec"] == "/etc/containerd/cri-base.json"
    assert runtime["privileged_without_host_devices"] is True


def test_runc_counts_where_the_default_is_of_another_kind(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "kata-default.toml").read_bytes())
    ok(call("containerd", config))
    assert runtimes(ours(config))["nvidia"]["options"]["Root"] == "/run/containerd/runc"


@VERSIONS
def test_nvidias_entry_is_over_ruled_and_comes_back(
    installed: Any, call: Call, config: Path, program: str, version: Version
) -> None:
    version(*installed)
    content = (DATA / "nvidias.toml").read_bytes()
    config.write_bytes(content)
    ok(call("containerd", config, "--force"))
    assert runtimes(ours(config))["nvidia"]["options"] == {"BinaryName": program, "SystemdCgroup": True}
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == {"config.toml": content}


def test_another_name_beside_nvidias(call: Call, config: Path, program: str) -> None:
    config.write_bytes((DATA / "nvidias.toml").read_bytes())
    ok(call("containerd", config, "--runtime-name=gpushim"))
    has = runtimes(ours(config))
    assert has["gpushim"]["options"] == {"BinaryName": program, "SystemdCgroup": True}
    assert has["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"


@VERSIONS
def test_a_second_name_and_a_later_call_keep_what_was_asked_for(
    installed: Any, call: Call, config: Path, version: Version
) -> None:
    version(*installed)
    ok(call("containerd", config, "--set-as-default", "--cdi"))
    content = ours(config).read_bytes()
    ok(call("containerd", config))
    assert ours(config).read_bytes() == content
    ok(call("containerd", config, "--runtime-name=gpu"))
    assert {"nvidia", "gpu"} <= {*runtimes(ours(config), installed[0] + 1)}
    assert plugin(meaning(ours(config)), installed[0] + 1)["containerd"]["default_runtime_name"] == "nvidia"


@pytest.mark.parametrize(
    ("installed", "reader"), [((1, 7), "containerd 1.7 takes"), ((0, 0), "its version is unknown; before 2.0) takes")]
)
def test_what_others_change_is_in_the_file_after_the_next_call(
    call: Call, config: Path, version: Version, installed: tuple[int, int], reader: str
) -> None:
    """Before 2.0 it has all of the CRI's settings, and says so."""
    version(*installed)
    write(config, "version = 2", table(2), "sandbox_image = 'one'")
    said = ok(call("containerd", config))
    assert f"{reader} the CRI's settings from {ours(config)} alone" in said
    config.write_text(config.read_text().replace("one", "two"))
    ok(call("containerd", config))
    assert plugin(meaning(ours(config)), 2)["sandbox_image"] == "two"


@pytest.mark.parametrize("name", ["runc", "NVIDIA", "a b", "", "-x", "x" * 64, "a.b"])
def test_names_that_no_runtime_class_can_have(name: str, call: Call, config: Path) -> None:
    assert "cannot be the name" in refused(call("containerd", config, f"--runtime-name={name}"))


@pytest.mark.parametrize(
    ("installed", "name", "options", "says"),
    [
        ((1, 7), "version-3.toml", (), "version 3, which containerd 1.7 does not read"),
        ((2, 1), "version-1.toml", (), "`containerd config migrate`"),
        ((1, 6), "kubeadm.toml", ("--cdi",), "needs 1.7"),
    ],
)
def test_what_a_version_cannot(
    installed: Any, name: str, options: Any, says: str, call: Call, config: Path, version: Version
) -> None:
    version(*installed)
    config.write_bytes((DATA / name).read_bytes())
    assert says in refused(call("containerd", config, *options))


def test_cdi_turned_off_is_turned_on(call: Call, config: Path, version: Version) -> None:
    version(2, 1)
    content = write(config, "version = 3", table(3), "enable_cdi = false # not yet")
    ok(call("containerd", config, "--cdi"))
    assert plugin(meaning(ours(config)), 3)["enable_cdi"] is True
    ok(call("containerd", config, "--remove"))
    assert config.read_bytes() == content


def test_a_disabled_cri_is_told(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "docker-package.toml").read_bytes())
    assert "the CRI is disabled" in call("containerd", config).output


@VERSIONS
@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "{here}/conf.d/*.toml", "conf.d/*", "conf.d/*.tom?"])
def test_a_directory_that_is_imported_gets_the_file(
    installed: Any, pattern: str, call: Call, config: Path, version: Version
) -> None:
    """The directory need not exist."""
    version(*installed)
    content = write(
        config, "version = 2", f'imports = ["{pattern.format(here=config.parent)}"]', table(2), "sandbox_image = 'x'"
    )
    ok(call("containerd", config, "--set-as-default"))
    assert {*tree(config.parent)} == {"config.toml", "conf.d/99-gpushim.toml"}
    assert ("sandbox_image" in plugin(meaning(ours(config)), 2)) is (installed < (2, 0))
    assert config.read_bytes() == content
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == {"config.toml": content}


@pytest.mark.parametrize(
    "line", ['["other.toml"] # c', "[]", '[ "other.toml", ]', '["*/99*.toml"]', '["c/[a-z]*.toml"]']
)
def test_imports_of_others_stay(line: str, call: Call, config: Path, version: Version) -> None:
    version(2, 1)
    write(config.parent / "other.toml", "version = 3")
    write(config, "version = 3", f"imports = {line}")
    old = meaning(config)
    ok(call("containerd", config))
    assert meaning(config)["imports"] == [*old["imports"], f"{config.parent}/conf.d/99-gpushim*.toml"]
    assert ("# c" in config.read_text()) is ("# c" in line)
    ok(call("containerd", config, "--remove"))
    assert meaning(config) == old
    assert ("# c" in config.read_text()) is ("# c" in line)


@pytest.mark.parametrize(
    ("lines", "since", "left"),
    [
        ((), "", None),
        (("# theirs",), "", {"version": 2}),
        (('imports = ["a.toml"]',), "", {"version": 2, "imports": ["a.toml"]}),
        (("imports = []",), "", {"version": 2, "imports": []}),
        ((), "'x' = 1\n", {"version": 2, "x": 1}),
    ],
)
def test_by_hand_takes_out_what_remove_does(
    lines: tuple[str, ...], since: str, left: Any, call: Call, config: Path, version: Version
) -> None:
    version(1, 7)
    (config.parent / "a.toml").write_text("")
    if lines:
        write(config, "version = 2", *lines)
    ok(call("containerd", config))
    with config.open("a") as file:
        file.write(since)
    *commands, restart = ok(call("containerd", config, "--remove", "--by-hand")).splitlines()
    subprocess.run(["/bin/sh", "-euc", "\n".join(commands)], check=True)
    assert restart.startswith("# restart")
    assert (meaning(config) if config.exists() else None) == left
    assert "gpushim" not in " ".join(tree(config.parent)) + (config.read_text() if left else "")


def test_imports_that_cannot_be_extended_safely(call: Call, config: Path, version: Version) -> None:
    version(2, 1)
    write(config.parent / "other.toml", "version = 3")
    content = write(config, "version = 3", "imports = [", "  'other.toml', # theirs", "]")
    said = refused(call("containerd", config))
    assert said == f'{config}: add "{config.parent}/conf.d/99-gpushim*.toml" to imports by hand, then try again'
    assert tree(config.parent)["config.toml"] == content


def test_containerd_1_reads_another_file_of_that_directory_later(call: Call, config: Path) -> None:
    """Its table of the CRI replaces ours; so ours is imported after it."""
    write(config, "version = 2", 'imports = ["more/*.toml"]', table(2), "sandbox_image = 'lost'")
    write(config.parent / "more/a.toml", table(2), "sandbox_image = 'mine'")
    before = tree(config.parent)
    ok(call("containerd", config))
    assert not (config.parent / "more/99-gpushim.toml").exists()
    assert plugin(meaning(ours(config)), 2)["sandbox_image"] == "mine"
    ok(call("containerd", config, "--remove"))
    assert {name: meaning(config.parent / name) for name in before} == {
        name: meaning(config.parent / name) for name in tree(config.parent)
    }


def test_a_file_that_is_read_later_and_would_replace_ours(call: Call, config: Path) -> None:
    write(config, "version = 2", 'imports = ["conf.d/*.toml"]')
    write(config.parent / "conf.d/a.toml", table(2), "sandbox_image = 'mine'")
    before = tree(config.parent)
    assert f"{config.parent}/conf.d/a.toml is read after gpushim's file" in refused(call("containerd", config))
    assert tree(config.parent) == before


def test_containerd_1_6_does_not_look_beside_its_file_for_a_pattern(
    call: Call, config: Path, version: Version
) -> None:
    version(1, 6)
    write(config, "version = 2", 'imports = ["conf.d/*.toml"]')
    write(config.parent / "conf.d/a.toml", table(2), "sandbox_image = 'not read'")
    ok(call("containerd", config))
    assert meaning(config)["imports"] == ["conf.d/*.toml", f"{config.parent}/conf.d/99-gpushim*.toml"]
    assert "sandbox_image" not in plugin(meaning(ours(config)), 2)


def test_imports_in_a_circle(call: Call, config: Path, version: Version) -> None:
    version(2, 1)
    write(config, "version = 3", 'imports = ["other.toml", "*.toml"]')
    write(config.parent / "other.toml", "version = 3", 'imports = ["config.toml"]')
    ok(call("containerd", config))
    assert "nvidia" in runtimes(config.parent / "99-gpushim.toml", 3)


def test_a_missing_or_broken_import_is_told_and_stops_no_removal(call: Call, config: Path) -> None:
    ok(call("containerd", config))
    other = config.parent / "other.toml"
    write(config, "version = 2", f'imports = ["other.toml", "{ours(config)}"]')
    assert "other.toml, which does not exist; make that file" in refused(call("containerd", config))
    other.write_text("version =")
    assert "other.toml is not TOML" in refused(call("containerd", config))
    ok(call("containerd", config, "--remove"))
    assert {*tree(config.parent)} == {"config.toml", "other.toml"}


def test_a_main_file_that_is_no_toml_stops_no_removal(call: Call, config: Path) -> None:
    ok(call("containerd", config))
    content = write(config, "[[")
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == {"config.toml": content}


def test_an_entry_in_an_imported_file_is_not_ours_to_change(call: Call, config: Path, version: Version) -> None:
    version(2, 1)
    write(config, "version = 3", 'imports = ["conf.d/*.toml"]')
    theirs = config.parent / "conf.d/10-nvidia.toml"
    options = (
        table(3, "containerd", "runtimes", "nvidia", "options"),
        "BinaryName = '/usr/bin/nvidia-container-runtime'",
    )
    write(theirs, "version = 3", table(3, "containerd", "runtimes", "nvidia"), "runtime_path = '/x'", *options)
    before = tree(config.parent)
    assert "the runtime nvidia is /usr/bin/nvidia-container-runtime" in refused(call("containerd", config))
    ok(call("containerd", config, "--force"))
    assert runtimes(ours(config), 3)["nvidia"]["runtime_path"] == ""  # theirs would count else
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == before


def test_a_file_of_others_in_that_place(call: Call, config: Path) -> None:
    content = write(ours(config), "# theirs")
    assert "is not gpushim's" in refused(call("containerd", config))
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == {"conf.d/99-gpushim.toml": content}


@pytest.mark.parametrize("word", ["--remove", "--runtime-name=gpu"])
def test_what_somebody_wrote_into_our_file_is_kept(word: str, call: Call, config: Path) -> None:
    ok(call("containerd", config))
    ours(config).write_text(ours(config).read_text() + "# mine\n")
    edited = ours(config).read_bytes()
    assert "nothing to change" in ok(call("containerd", config))
    kept = config.parent / "conf.d.99-gpushim.toml.kept-gpushim"
    assert str(kept) in ok(call("containerd", config, word))
    assert kept.read_bytes() == edited


def test_the_running_containerds_file_is_changed(call: Call, config: Path, engines: list[Engine]) -> None:
    engines.append(Engine("dockerd", 5))
    engines.append(Engine("containerd", 6, parent=5, config="/run/docker/containerd/containerd.toml"))
    engines.append(Engine("containerd", 7, config=str(config)))
    assert f"changed {config}" in ok(call("containerd", None))


def test_two_containerds_need_a_word(call: Call, config: Path, engines: list[Engine]) -> None:
    engines += [Engine("containerd", 7, config=str(config)), Engine("containerd", 8, config="/etc/other.toml")]
    assert "2 containerd run" in refused(call("containerd", None))
    ok(call("containerd", config))


def test_another_users_containerd_is_told(call: Call, config: Path, impostors: list[Impostor]) -> None:
    impostors.append(Impostor("containerd", 7, 1000, "it is user 1000's"))
    assert "user 1000 runs containerd too" in call("containerd", config).output


def test_a_removal_of_the_usual_files_alone(call: Call, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As packages call it."""
    ok(call("containerd", config))
    monkeypatch.setattr(containerd, "USUAL", (str(config),))
    ok(call("containerd", None, "--remove", "--files-only"))
    assert tree(config.parent) == {}


def test_our_file_goes_that_is_not_imported_any_more(call: Call, config: Path) -> None:
    ok(call("containerd", config))
    content = write(config, "version = 2")
    ok(call("containerd", config, "--remove"))
    assert {name: text for name, text in tree(config.parent).items() if "before" not in name} == {
        "config.toml": content
    }


def test_our_file_for_another_containerd_stays(call: Call, tmp_path: Path, version: Version) -> None:
    version(2, 0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "config.toml", "version = 3", 'imports = ["conf.d/*.toml"]')
        ok(call("containerd", tmp_path / name / "config.toml"))
    ok(call("containerd", tmp_path / "one" / "config.toml", "--remove"))
    assert [os.listdir(tmp_path / name / "conf.d") for name in ("one", "two")] == [[], ["99-gpushim.toml"]]


@VERSIONS
def test_a_default_of_others_keeps_our_entry_until_it_is_taken_out(
    installed: Any, call: Call, config: Path, version: Version
) -> None:
    """The CRI does not start without its default runtime."""
    version(*installed)
    ok(call("containerd", config))
    text = config.read_text()
    number = installed[0] + 1
    config.write_text(text + f'{table(number, "containerd")}\ndefault_runtime_name = "nvidia"\n')
    said = refused(call("containerd", config, "--remove"))
    assert f"{config}: default_runtime_name is nvidia, which goes with gpushim's entry" in said
    config.write_text(text + f"{table(number, 'containerd')}\n")  # as it says
    ok(call("containerd", config, "--remove"))
    assert not ours(config).exists()


@pytest.mark.parametrize("since", ["", "# mine\n"])
def test_what_an_earlier_gpushim_wrote_into_the_file_goes(since: str, call: Call, config: Path) -> None:
    """Its lines, and its records; the file as it was without gpushim stays beside it until `--remove`."""
    old = write(config, "version = 2", table(2), "sandbox_image = 'mine'")
    made = (
        old + f"{table(2, 'containerd', 'runtimes', 'nvidia', 'options')}\nBinaryName = '/gpushim-runtime'\n".encode()
    )
    config.write_bytes(since.encode() + made)
    for suffix, content in ((".before-gpushim", old), (".after-gpushim", made)):
        config.with_name(config.name + suffix).write_bytes(content)
    ok(call("containerd", config))
    assert {*tree(config.parent)} == {"config.toml", "config.toml.before-gpushim", "conf.d/99-gpushim.toml"}
    assert "nvidia" in runtimes(ours(config))
    assert [*meaning(config)] == ["version", "imports", "plugins"]
    assert "BinaryName" not in config.read_text()
    ok(call("containerd", config, "--remove"))
    assert tree(config.parent) == {"config.toml": since.encode() + old}
