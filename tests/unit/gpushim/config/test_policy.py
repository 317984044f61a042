"""config.toml: what is read, what is refused and with which words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.config import policy
from gpushim.ground.errors import CONFIG, NOT_FOUND, GpushimError
from gpushim.oci.authorization import SWITCHES

TOP = Path(__file__).parents[4]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def refusal(path: Path) -> str:
    with pytest.raises(GpushimError) as caught:
        policy.load(str(path))
    assert caught.value.exit_code == CONFIG
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_file_means_defaults(config: Path) -> None:
    assert policy.load(str(config)) == policy.defaults()


def test_a_profile_sets_its_switches(config: Path) -> None:
    config.write_text('[requests]\nprofile = "multi-tenant"\n')
    found, default = cast(Any, policy.load(str(config))), cast(Any, policy.defaults())
    changed = {key: value for key, value in found["requests"].items() if value != default["requests"][key]}
    assert changed == {
        "profile": "multi-tenant",
        "accept-env-when-unprivileged": False,
        "accept-annotations-when-unprivileged": False,
        "accept-volume-mounts": True,
        "list-devices-in-refusals": False,
    }
    assert {section: keys for section, keys in found.items() if keys != default[section]}.keys() == {"requests"}


def test_what_the_file_names_itself_counts_over_the_profile(config: Path) -> None:
    text = '[requests]\nprofile = "multi-tenant"\naccept-volume-mounts = false\nswarm-variables = ["A"]\n'
    config.write_text(text + '[cdi]\nforeign-kinds = ["a/b"]\n[mps]\nenabled = true\n')
    found = policy.load(str(config))
    assert found["requests"]["accept-volume-mounts"] is False
    assert found["requests"]["swarm-variables"] == ["A"]
    assert (found["cdi"]["foreign-kinds"], found["mps"]["enabled"]) == (["a/b"], True)


def test_every_switch_of_the_table_is_in_the_profile_or_stays(config: Path) -> None:
    """IMEX channels come by the plugin's mounts there; whoever forbids them says so for the host."""
    switches = {(section, key) for section, key, _, _ in SWITCHES.values()}
    named = {(section, key) for section, keys in policy.PROFILES["multi-tenant"].items() for key in keys}
    assert switches - named == {("requests", "ignore-imex-channel-requests")}


@pytest.mark.parametrize("kind", ["vendor.com/x=1", "foo", "/x", "vendor.com/", "a/b\\n"])
def test_a_foreign_kind_that_is_none(config: Path, kind: str) -> None:
    config.write_text(f'[cdi]\nforeign-kinds = ["{kind}"]\n')
    with pytest.raises(GpushimError, match="vendor/class without =name"):
        policy.load(str(config))


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        ('[device-plugin]\nkubelet-dir = "/k"\nx = 1\n[nowhere]\ny = 2\n', "/k"),
        ('log = 1\n[device-plugin]\nkubelet-dir = "/k"\nmig-strategy = "x"\n', "/k"),
        ('[device-plugin]\nkubelet-dir = ["/k"]\n', "/var/lib/kubelet"),
        ('[device-plugin\nkubelet-dir = "/k"\n', "/var/lib/kubelet"),
    ],
)
def test_of_a_wrong_one_what_is_right_is_usable(config: Path, text: str, directory: str) -> None:
    config.write_text(text)
    with pytest.raises(GpushimError):
        policy.load(str(config))
    found = policy.usable(str(config))
    assert found["device-plugin"] == {**policy.defaults()["device-plugin"], "kubelet-dir": directory}
    assert found["log"] == policy.defaults()["log"]


def test_defaults_pass_the_schema() -> None:
    jsonschema.validate(policy.defaults(), policy.schema())


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ('[driver]\nroot = "/run/nvidia/driver"', "driver", "root", "/run/nvidia/driver"),
        ('[driver]\nroot = "//run//nvidia/driver/"', "driver", "root", "/run/nvidia/driver"),
        ('[driver]\nroot = "/run/nvidia/driver"', "driver", "dev-root", "/run/nvidia/driver"),
        ('[driver]\nroot = "/r"\ndev-root = "/"', "driver", "dev-root", "/"),
        ("[refresh]\ndeadline-seconds = 600", "refresh", "deadline-seconds", 600),
        ('[log]\r\nformat = "text"\r\n', "log", "format", "text"),
        ('[log]\nfile = ""', "log", "file", ""),
        ('[runtime]\nlow-level = ["/opt/crun"]', "runtime", "low-level", ["/opt/crun"]),
        (
            # As Docker has it of the generic resource NVIDIA-GPU; and as Kubernetes would write that.
            '[requests]\nswarm-variables = ["DOCKER_RESOURCE_NVIDIA-GPU", "DOCKER_RESOURCE_NVIDIA.COM/GPU"]',
            "requests",
            "swarm-variables",
            ["DOCKER_RESOURCE_NVIDIA-GPU", "DOCKER_RESOURCE_NVIDIA.COM/GPU"],
        ),
        ("\t\n# nothing but a comment", "requests", "disable-require", False),
    ],
)
def test_accepted(config: Path, text: str, section: str, key: str, value: object) -> None:
    config.write_bytes(text.encode())
    found: Any = policy.load(str(config))
    assert found[section][key] == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[requests]\naccept-volume-mount = true", "did you mean requests.accept-volume-mounts?"),
        ("[request]\naccept-volume-mounts = true", "request is not a known key; did you mean requests?"),
        ("[driver]\nlow-level = []", "driver.low-level is not a known key; did you mean runtime.low-level?"),
        (
            "zzz = 1",
            "zzz is not a known key; the sections are driver, runtime, requests, cdi, mps, hook, refresh, device-",
        ),
        ("[requests]\nvolume-mounts = true", "did you mean requests.accept-volume-mounts?"),
        ("[requests]\nxx = 1", "requests.xx is not a known key; the keys of [requests] are profile, "),
        ("[runtime]\nlow_level = []", "did you mean runtime.low-level?"),
        ("dev-root = 1", "did you mean driver.dev-root?"),
        ('"a\\nb" = 1', "a\\nb is not a known key"),
        ("driver = 1", "driver is 1, not a table"),
        ("[driver]\nroot = 1", "driver.root is 1, not a string"),
        ('[driver]\nroot = "run/nvidia"', "driver.root is 'run/nvidia', which is not allowed there"),
        ('[driver]\nroot = "/a\\n"', "which is not allowed there"),
        ('[runtime]\nlow-level = "runc"', "runtime.low-level is 'runc', not an array"),
        ("[runtime]\nlow-level = []", "runtime.low-level is empty"),
        ('[runtime]\nlow-level = ["runc", 2]', "runtime.low-level[1] is 2, not a string"),
        ('[runtime]\nlow-level = [""]', "runtime.low-level[0] is ''"),
        ("[requests]\ndisable-require = 1", "requests.disable-require is 1, not true or false"),
        ('[requests]\ndefault-capabilities = ["cuda"]', "requests.default-capabilities[0] is 'cuda', not one of"),
        ("[requests]\ndefault-capabilities = []", "requests.default-capabilities is empty"),
        ('[requests]\nswarm-variables = ["A\\nB"]', "requests.swarm-variables[0]"),
        ('[requests]\nswarm-variables = ["-e"]', "requests.swarm-variables[0]"),
        ('[cdi]\nannotation-prefixes = [""]', "cdi.annotation-prefixes[0]"),
        ('[cdi]\nkind = "nvidia.com"', "cdi.kind is 'nvidia.com'"),
        ("[refresh]\ndeadline-seconds = 0", "refresh.deadline-seconds is 0, not between 1 and 600"),
        ("[refresh]\ndeadline-seconds = true", "is True, not an integer"),
        ("[refresh]\ndeadline-seconds = 2.5", "is 2.5, not an integer"),
        ('[log]\nformat = "xml"', "log.format is 'xml', not one of json, text"),
        ("[driver]\nroot = /run", "line 2"),
        ("[driver\n", "line 1"),
        ("a = 1\na = 2\n", "line 2"),
        ("a = " + "9" * 5000, "is not TOML"),
        ("a = " + "[" * 20000, "config.toml"),
        ("x" * 100 + " = 1", "..."),
    ],
)
def test_refused(config: Path, text: str, words: str) -> None:
    config.write_text(text)
    said = refusal(config)
    assert said.startswith(str(config))
    assert words in said
    assert len(said) < 500


@pytest.mark.parametrize("value", ['"/usr/sbin/runc"', "'a\"b'", '"it\'s"'])
def test_the_line_that_it_names_for_a_list_is_right(config: Path, value: str) -> None:
    config.write_text(f"[runtime]\nlow-level = {value}\n")
    line = refusal(config).partition("; write ")[2]
    config.write_text(f"[runtime]\n{line}\n")
    assert policy.load(str(config))["runtime"]["low-level"] == [value[1:-1]]


@pytest.mark.parametrize("line", ["low-level = 5", 'low-level = "caf\u00e9"', f'low-level = "{"x" * 100}"'])
def test_it_names_no_line_that_could_be_wrong(config: Path, line: str) -> None:
    config.write_text(f"[runtime]\n{line}\n")
    assert "write low-level" not in refusal(config)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xef\xbb\xbf[driver]\n", "line 1: begins with a byte order mark"),
        (b"# good\n# good\n# \xff bad\n", "line 3: is not UTF-8"),
        ("[driver]\n".encode("utf-16"), "line 1: is not UTF-8"),
        (b"[driver]\rroot='/'", "line 1"),
        (b"#" * ((1 << 20) + 1), "larger than 1 MiB"),
    ],
)
def test_refused_bytes(config: Path, data: bytes, words: str) -> None:
    config.write_bytes(data)
    assert words in refusal(config)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file(config: Path, make: Callable[[Path], None]) -> None:
    make(config)
    assert "is not a regular file" in refusal(config)


def test_loop_of_links(config: Path) -> None:
    config.symlink_to(config)
    assert "cannot be read: Too many levels of symbolic links" in refusal(config)


@pytest.mark.parametrize("name", ["config.toml", "folder/config.toml"])
def test_a_link_that_leads_nowhere_is_not_a_missing_file(tmp_path: Path, name: str) -> None:
    """What it leads to may be on a volume that is not there yet."""
    link = tmp_path / name.partition("/")[0]
    link.symlink_to(tmp_path / "volume")
    which = "it" if name == link.name else link
    assert f"{which} is a link that leads nowhere; put there what it leads to, or remove" in refusal(tmp_path / name)
    link.unlink()
    assert policy.given(str(tmp_path / name)) is None


@pytest.mark.parametrize(("mode", "owner"), [(0o664, 0), (0o646, 0), (0o644, 4711)])
def test_not_to_be_trusted(config: Path, mode: int, owner: int) -> None:
    config.write_text("")
    config.chmod(mode)
    os.chown(config, owner, 0)
    assert f"user {owner} owns it, its mode is {mode:04o}" in refusal(config)


def test_defaults_are_new_objects() -> None:
    policy.defaults()["runtime"]["low-level"].append("x")
    assert policy.defaults()["runtime"]["low-level"] == ["runc", "crun"]


_SCHEMA = policy.schema()
_VALIDATOR = jsonschema.Draft202012Validator(_SCHEMA)
_KEYS = [key for rule in _SCHEMA["properties"].values() for key in rule["properties"]]
_VALUES = st.one_of(
    st.sampled_from(["/", "/a", "", "a", "json", "runc", "A_B", "v/c", "/a\n", "\n", "x y"]),
    st.booleans(),
    st.integers(-1, 700),
    st.just(1.5),
    st.none(),
    st.lists(st.sampled_from(["runc", "", "A\n", 1, "/x", "a.b/"]), max_size=3),
)
_SECTIONS = st.dictionaries(st.sampled_from([*_KEYS, "other"]), _VALUES, max_size=4)
_DOCUMENTS = st.dictionaries(st.sampled_from([*_SCHEMA["properties"], "x"]), _SECTIONS | _VALUES, max_size=4)


@given(_DOCUMENTS)
def test_validator_agrees_with_jsonschema(document: dict[str, Any]) -> None:
    assert (not list(policy.problems(document, _SCHEMA, ""))) == _VALIDATOR.is_valid(document)


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(policy.schema())


class TestLowLevel:
    """Finding the low-level runtime."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(policy, "SYSTEM_PATH", str(tmp_path / "system"))
        monkeypatch.setattr(policy, "ENGINES_PATH", (f"{tmp_path}/current/bin", f"{tmp_path}/data/*/bin"))
        monkeypatch.setenv("PATH", f"relative::{tmp_path}/path")
        for place in ("system", "path"):
            (tmp_path / place).mkdir()
        return tmp_path

    def executable(self, path: Path) -> str:
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)

    def test_first_name_wins_over_first_folder(self, folder: Path) -> None:
        self.executable(folder / "system/crun")
        expected = self.executable(folder / "path/runc")
        assert policy.low_level(["runc", "crun"]) == expected

    def test_system_folders_come_before_path(self, folder: Path) -> None:
        self.executable(folder / "path/runc")
        expected = self.executable(folder / "system/runc")
        assert policy.low_level(["runc"]) == expected

    def test_an_engines_own(self, folder: Path) -> None:
        for number, name in enumerate(["new", "old"]):
            (folder / "data" / name / "bin").mkdir(parents=True)
            self.executable(folder / "data" / name / "bin/runc")
            os.utime(folder / "data" / name / "bin", (0, -number))
        assert policy.low_level(["runc"]) == f"{folder}/data/new/bin/runc"
        (folder / "current").symlink_to("data/old")
        assert policy.low_level(["runc"]) == f"{folder}/current/bin/runc"
        (folder / "data/old/bin").chmod(0o777)
        assert policy.low_level(["runc"]) == f"{folder}/data/new/bin/runc"
        expected = self.executable(folder / "path/runc")
        assert policy.low_level(["runc"]) == expected

    def test_a_link_of_an_engines_that_leads_nowhere(self, folder: Path) -> None:
        (folder / "data/gone").mkdir(parents=True)
        (folder / "data/gone/bin").symlink_to("/nowhere")
        with pytest.raises(GpushimError, match="no low-level runtime"):
            policy.low_level(["runc"])
        assert policy.low_level([self.executable(folder / "path/crun")])

    def test_what_stands_in(self, folder: Path) -> None:
        theirs, last = self.executable(folder / "system/crun"), self.executable(folder / "last")
        assert policy.stand_in([theirs], last) == theirs
        assert policy.stand_in(["/none"], last) == last
        assert policy.stand_in(["/none"], "") == theirs
        assert policy.stand_in(["/none"], "/none/crun") == theirs
        with pytest.raises(GpushimError, match="none of /none, /none/runc, runc is"):
            policy.stand_in(["/none"], "/none/runc")
        with pytest.raises(GpushimError, match="none of runc, lxc, /none/lxc is"):
            policy.stand_in(["runc", "lxc"], "/none/lxc")

    def test_folders_of_engines_come_last(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also for names that come first: what is found must not change because an engine is installed."""
        monkeypatch.setattr(policy, "ENGINES_PATH", (f"{folder}/own",))
        (folder / "own").mkdir()
        own = self.executable(folder / "own/runc")
        assert policy.low_level(["runc", "crun"]) == own
        theirs = self.executable(folder / "path/crun")
        assert policy.low_level(["runc", "crun"]) == theirs

    def test_a_folder_of_path_that_others_may_write_does_not_count(self, folder: Path) -> None:
        self.executable(folder / "path/runc")
        (folder / "path").chmod(0o777)
        with pytest.raises(GpushimError, match="no low-level runtime"):
            policy.low_level(["runc"])

    def test_a_folder_of_path_that_others_may_replace_does_not_count(self, folder: Path) -> None:
        (folder / "path").rmdir()
        (folder / "above/path").mkdir(parents=True)
        self.executable(folder / "above/path/runc")
        (folder / "path").symlink_to("above/path")
        assert policy.low_level(["runc"])
        (folder / "above").chmod(0o777)
        with pytest.raises(GpushimError, match="no low-level runtime"):
            policy.low_level(["runc"])

    def test_absolute_path(self, folder: Path) -> None:
        expected = self.executable(folder / "mine")
        assert policy.low_level(["nothing", expected]) == expected

    @pytest.mark.parametrize("name", ["./runc", "bin/runc", "{}/plain", "{}/folder", "{}/no\nline", "{}/dangling"])
    def test_not_usable(self, folder: Path, name: str) -> None:
        (folder / "plain").write_text("")
        (folder / "folder").mkdir()
        (folder / "dangling").symlink_to("nowhere")
        self.executable(folder / "no\nline")
        with pytest.raises(GpushimError, match=r"(?s)none of .* is an executable file") as caught:
            policy.low_level([name.format(folder)])
        assert caught.value.exit_code == NOT_FOUND

    def test_relative_folder_in_path_does_not_count(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "relative").mkdir()
        self.executable(folder / "relative/runc")
        self.executable(folder / "runc")
        monkeypatch.chdir(folder)
        with pytest.raises(GpushimError, match="runc"):
            policy.low_level(["runc"])


def test_a_create_can_read_it_too(tmp_path: Path) -> None:
    """Python before 3.11 has no TOML parser, and a create has only what lies beside the code."""
    path = tmp_path / "config.toml"
    path.write_text('[runtime]\nlow-level = ["crun"]\n')
    path.chmod(0o644)
    code = (
        f"import sys; sys.path.append({str(TOP / 'shim')!r}); from gpushim.config import policy; old = sys.path[:]\n"
    )
    code += f"print(policy.load({str(path)!r})['runtime'], sys.path == old)"
    done = subprocess.run([sys.executable, "-IBS", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'low-level': ['crun']} True\n"
