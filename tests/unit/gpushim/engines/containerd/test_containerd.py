"""`gpushim configure containerd`: files of every version and kind, changed and put back."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushim.engines import containerd
from gpushim.engines.containerd import imports, process
from gpushim.engines.containerd.process import Daemon
from gpushim.engines.processes import programs, running
from gpushim.engines.processes.running import Engine, Impostor
from gpushim.engines.settings import files, syntax
from gpushim.engines.settings.setup import Options, Plan
from gpushim.engines.settings.text import Toml
from gpushim.ground.errors import GpushimError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("version")]

DATA = Path(__file__).parents[4] / "data" / "engines" / "containerd"
Call = Callable[..., Result]

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
ASK_VERSION = process._version
RUNC = {"runtime_type": "io.containerd.runc.v2"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "containerd").mkdir()
    return tmp_path / "containerd" / "config.toml"


def ok(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(result: Result) -> str:
    assert isinstance(result.exception, GpushimError), (result.output, result.exception)
    return str(result.exception)


def meaning(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = tomlkit.parse(path.read_bytes()).unwrap()
    return data


def plugin(data: dict[str, Any], number: int) -> dict[str, Any]:
    table: dict[str, Any] = data["plugins"][imports.CRI[number]]
    return table


def runtimes(path: Path, number: int = 2) -> dict[str, Any]:
    table: dict[str, Any] = plugin(meaning(path), number)["containerd"]["runtimes"]
    return table


def write(path: Path, *lines: str) -> bytes:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path.read_bytes()


def table(number: int, *more: str) -> str:
    return f"[plugins.'{imports.CRI[number]}'{''.join(f'.{name}' for name in more)}]"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str, call: Call, config: Path) -> None:
    content = (DATA / name).read_bytes()
    config.write_bytes(content)
    assert REFUSED[name] in refused(call("containerd", config))
    assert config.read_bytes() == content
    assert os.listdir(config.parent) == ["config.toml"]


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, call: Call, config: Path, program: str, version: Callable[..., None]) -> None:
    """All else stays, a second call changes nothing, and --remove brings back the bytes."""
    number = KEYS.get(name, 2)
    version(*((2, 1) if number == 3 else (1, 7)))
    content = (DATA / name).read_bytes()
    config.write_bytes(content)
    ok(call("containerd", config, "--set-as-default", "--cdi"))
    runtime = runtimes(config, number)["nvidia"]
    assert runtime["options"]["BinaryName"] == program
    assert runtime["runtime_type"] == "io.containerd.runc.v2"
    assert runtime["options"].get("SystemdCgroup", False) is (name.partition(".")[0] in SYSTEMD)
    assert "runc" in runtimes(config, number)
    assert plugin(meaning(config), number)["containerd"]["default_runtime_name"] == "nvidia"
    assert ("enable_cdi" in plugin(meaning(config), number)) is (number != 3)
    lines = [line.strip() for line in config.read_bytes().splitlines()]
    comments = [line.strip() for line in content.splitlines() if line.strip().startswith(b"#")]
    assert [line for line in comments if line not in lines] == []
    changed = config.stat()
    assert "nothing to change" in ok(call("containerd", config, "--set-as-default", "--cdi"))
    assert config.stat().st_mtime_ns == changed.st_mtime_ns
    ok(call("containerd", config, "--remove"))
    assert config.read_bytes() == content
    assert os.listdir(config.parent) == ["config.toml"]


def test_crlf_stays(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "crlf.toml").read_bytes())
    ok(call("containerd", config, "--set-as-default"))
    content = config.read_bytes()
    assert content.count(b"\n") == content.count(b"\r\n")


@pytest.mark.parametrize(("installed", "number"), [((1, 6), 2), ((1, 7), 2), ((2, 1), 3), ((0, 0), 2)])
def test_no_file(
    installed: tuple[int, int], number: int, call: Call, config: Path, version: Callable[..., None]
) -> None:
    version(*installed)
    ok(call("containerd", config))
    data = meaning(config)
    assert data["version"] == number
    # Before 2.0 a table of runtimes takes the built-in runc away.
    assert set(runtimes(config, number)) == ({"runc", "nvidia"} if number == 2 else {"nvidia"})
    assert "nothing to change" in ok(call("containerd", config))
    ok(call("containerd", config, "--remove"))
    assert os.listdir(config.parent) == []


def test_like_the_default_runtime(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "kubeadm.toml").read_bytes())
    ok(call("containerd", config))
    runtime = runtimes(config)["nvidia"]
    assert runtime["base_runtime_spec"] == "/etc/containerd/cri-base.json"
    assert runtime["privileged_without_host_devices"] is True


def test_runc_counts_where_the_default_is_of_another_kind(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "kata-default.toml").read_bytes())
    ok(call("containerd", config))
    assert runtimes(config)["nvidia"]["options"]["Root"] == "/run/containerd/runc"


@pytest.mark.parametrize("since", ["", "\n[ttrpc]\naddress = '/run/ttrpc'\n"])
def test_nvidias_entry_is_replaced_and_comes_back(since: str, call: Call, config: Path, program: str) -> None:
    content = (DATA / "nvidias.toml").read_text()
    config.write_text(content)
    ok(call("containerd", config, "--force"))
    assert runtimes(config)["nvidia"]["options"] == {"BinaryName": program, "SystemdCgroup": True}
    config.write_text(config.read_text() + since)
    ok(call("containerd", config, "--remove"))
    assert tomlkit.parse(config.read_text()).unwrap() == tomlkit.parse(content + since).unwrap()
    assert since or config.read_text() == content


def test_another_name_beside_nvidias(call: Call, config: Path, program: str) -> None:
    config.write_bytes((DATA / "nvidias.toml").read_bytes())
    ok(call("containerd", config, "--runtime-name=gpushim"))
    assert runtimes(config)["gpushim"]["options"] == {"BinaryName": program, "SystemdCgroup": True}
    assert runtimes(config)["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"


def test_remove_leaves_what_was_added_since(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "debian.toml").read_bytes())
    ok(call("containerd", config))
    text = config.read_text()
    config.write_text(
        text + f"\n{table(2, 'containerd', 'runtimes', 'kata')}\nruntime_type = 'io.containerd.kata.v2'\n"
    )
    ok(call("containerd", config, "--remove"))
    # runc's entry was ours; without it kata's would now take the built-in one away.
    assert runtimes(config) == {"runc": RUNC, "kata": {"runtime_type": "io.containerd.kata.v2"}}
    assert "/usr/lib/cni" in config.read_text()


def test_a_later_call_keeps_the_default(call: Call, config: Path) -> None:
    ok(call("containerd", config, "--set-as-default", "--cdi"))
    content = config.read_bytes()
    ok(call("containerd", config))
    assert config.read_bytes() == content


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
    installed: Any, name: str, options: Any, says: str, call: Call, config: Path, version: Any
) -> None:
    version(*installed)
    config.write_bytes((DATA / name).read_bytes())
    assert says in refused(call("containerd", config, *options))


def test_cdi_turned_off_is_turned_on(call: Call, config: Path, version: Callable[..., None]) -> None:
    version(2, 1)
    content = write(config, "version = 3", table(3), "enable_cdi = false # not yet")
    ok(call("containerd", config, "--cdi"))
    assert plugin(meaning(config), 3)["enable_cdi"] is True
    assert "# not yet" in config.read_text()
    ok(call("containerd", config, "--remove"))
    assert config.read_bytes() == content


def test_a_disabled_cri_is_told(call: Call, config: Path) -> None:
    config.write_bytes((DATA / "docker-package.toml").read_bytes())
    assert "the CRI is disabled" in call("containerd", config).output


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "{here}/conf.d/*.toml", "conf.d/*", "conf.d/*.tom?"])
def test_containerd_2_gets_a_file_where_it_imports_a_directory(
    pattern: str, call: Call, config: Path, program: str, version: Callable[..., None]
) -> None:
    """The directory need not exist."""
    version(2, 1)
    imports = f'imports = ["{pattern.format(here=config.parent)}"]'
    content = write(
        config, "version = 3", imports, table(3, "containerd", "runtimes", "runc", "options"), "Root = '/x'"
    )
    ok(call("containerd", config, "--set-as-default"))
    added = config.parent / "conf.d" / "99-gpushim.toml"
    assert config.read_bytes() == content
    assert meaning(added)["version"] == 3
    assert plugin(meaning(added), 3)["containerd"]["default_runtime_name"] == "nvidia"
    assert runtimes(added, 3)["nvidia"]["options"]["BinaryName"] == program
    assert "nothing to change" in ok(call("containerd", config, "--set-as-default"))
    ok(call("containerd", config, "--remove"))
    assert os.listdir(added.parent) == []
    assert config.read_bytes() == content


def test_records_of_a_file_of_ours_that_is_gone_go_too(
    call: Call, config: Path, version: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as package removal calls it, which looks at the usual places alone."""
    version(2, 1)
    monkeypatch.setattr(containerd, "USUAL", (str(config),))
    for named, more in ((config, ()), (None, ("--files-only",))):
        write(config, "version = 3", 'imports = ["conf.d/*.toml"]')
        ok(call("containerd", config))
        (config.parent / "conf.d" / "99-gpushim.toml").unlink()
        ok(call("containerd", named, "--remove", *more))
        assert sorted(os.listdir(config.parent)) == ["conf.d", config.name]
    write(config, "version = 3")
    ok(call("containerd", config))
    config.unlink()
    ok(call("containerd", None, "--remove", "--files-only"))
    assert os.listdir(config.parent) == ["conf.d"]


def test_a_file_of_ours_goes_whole_without_its_records(call: Call, config: Path) -> None:
    """With runc's entry, and CDI, by which nothing shows that they are gpushim's but the file's first line."""
    ok(call("containerd", config, "--cdi"))
    for record in config.parent.glob("*-gpushim"):
        record.unlink()
    ok(call("containerd", config, "--remove"))
    assert not config.exists()


def test_a_file_of_ours_is_like_runc_of_another_file(call: Call, config: Path, version: Callable[..., None]) -> None:
    version(2, 0)
    write(config, "version = 2", 'imports = ["conf.d/*.toml"]')
    runc = (table(2, "containerd", "runtimes", "runc"), "runtime_type = 'io.containerd.runc.v2'")
    systemd = (table(2, "containerd", "runtimes", "runc", "options"), "SystemdCgroup = true")
    write(config.parent / "conf.d" / "runc.toml", "version = 2", *runc, *systemd)
    write(config.parent / "conf.d" / "sandbox.toml", "version = 2", table(2), "sandbox_image = 'mine'")
    ok(call("containerd", config))
    assert runtimes(config.parent / "conf.d" / "99-gpushim.toml")["nvidia"]["options"]["SystemdCgroup"] is True


@pytest.mark.parametrize("imports", ["[]", '["other.toml"]', '["*/99*.toml"]', '["conf.d/[a-z]*.toml"]'])
def test_containerd_2_without_a_directory_for_us(
    imports: str, call: Call, config: Path, version: Callable[..., None]
) -> None:
    version(2, 1)
    write(config.parent / "other.toml", "version = 3")
    write(config, "version = 3", f"imports = {imports}")
    ok(call("containerd", config))
    assert "nvidia" in runtimes(config, 3)


def test_containerd_1_gets_no_file_that_would_replace_the_users_settings(call: Call, config: Path) -> None:
    """Defect of others: what is imported replaces the plugin's whole table."""
    write(config, "version = 2", 'imports = ["conf.d/*.toml"]', table(2), "sandbox_image = 'mine'")
    ok(call("containerd", config))
    assert "nvidia" in runtimes(config)
    assert not (config.parent / "conf.d").exists()


def test_containerd_1_gets_it_into_the_file_whose_table_counts(call: Call, config: Path) -> None:
    content = write(config, "version = 2", 'imports = ["conf.d/*.toml"]', table(2), "sandbox_image = 'lost'")
    counts = config.parent / "conf.d" / "b.toml"
    write(config.parent / "conf.d" / "a.toml", table(2), "sandbox_image = 'lost too'")
    write(counts, table(2), "sandbox_image = 'mine'")
    write(config.parent / "conf.d" / "c.toml", "[grpc]", "uid = 0")
    ok(call("containerd", config))
    assert "nvidia" in runtimes(counts)
    assert config.read_bytes() == content
    ok(call("containerd", config, "--remove"))
    assert counts.read_text() == f"{table(2)}\nsandbox_image = 'mine'\n"


def test_containerd_1_6_does_not_look_beside_its_file_for_a_pattern(
    call: Call, config: Path, version: Callable[..., None]
) -> None:
    version(1, 6)
    write(config, "version = 2", 'imports = ["conf.d/*.toml"]')
    content = write(config.parent / "conf.d" / "a.toml", table(2), "sandbox_image = 'not read'")
    ok(call("containerd", config))
    assert "nvidia" in runtimes(config)
    assert (config.parent / "conf.d" / "a.toml").read_bytes() == content


def test_a_file_that_does_not_last_is_not_changed(call: Call, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """k0s imports one that it makes at each start."""
    monkeypatch.setattr(containerd, "_target", lambda name, daemon, tree: "/run/k0s/containerd-cri.toml")
    assert "it would not last" in refused(call("containerd", config))


def test_imports_in_a_circle(call: Call, config: Path, version: Callable[..., None]) -> None:
    version(2, 1)
    write(config, "version = 3", 'imports = ["other.toml", "*.toml"]')
    write(config.parent / "other.toml", "version = 3", 'imports = ["config.toml"]')
    ok(call("containerd", config))
    assert "nvidia" in runtimes(config.parent / "99-gpushim.toml", 3)


def test_a_missing_import_is_told(call: Call, config: Path) -> None:
    content = write(config, "version = 2", 'imports = ["gone.toml"]')
    assert "gone.toml, which does not exist; make that file" in refused(call("containerd", config))
    ok(call("containerd", config, "--remove"))
    assert config.read_bytes() == content


def test_a_broken_import_is_told_by_its_name(call: Call, config: Path) -> None:
    write(config, "version = 2", 'imports = ["other.toml"]')
    write(config.parent / "other.toml", "version =")
    assert "other.toml is not TOML" in refused(call("containerd", config))


def test_an_entry_of_ours_elsewhere_is_taken_for_done(call: Call, config: Path, version: Callable[..., None]) -> None:
    version(2, 1)
    ok(call("containerd", config))
    text = config.read_text()
    config.write_text(text.replace("version = 3", 'version = 3\nimports = ["conf.d/*.toml"]'))
    assert "nothing to change" in ok(call("containerd", config))


def test_an_entry_in_an_imported_file_is_not_ours_to_change(
    call: Call, config: Path, version: Callable[..., None]
) -> None:
    version(2, 1)
    write(config, "version = 3", 'imports = ["conf.d/*.toml"]')
    theirs = config.parent / "conf.d" / "99-nvidia.toml"
    options = (
        table(3, "containerd", "runtimes", "nvidia", "options"),
        "BinaryName = '/usr/bin/nvidia-container-runtime'",
    )
    content = write(theirs, "version = 3", *options)
    assert "the runtime nvidia is /usr/bin/nvidia-container-runtime" in refused(call("containerd", config))
    ok(call("containerd", config, "--force"))
    assert os.listdir(theirs.parent) == ["99-nvidia.toml"]
    ok(call("containerd", config, "--remove"))
    assert theirs.read_bytes() == content


def test_k3s_with_containerd_1_gets_a_template(call: Call, k3s: Path, program: str) -> None:
    config = k3s / "config.toml"
    content = (DATA / "kubeadm.toml").read_bytes()
    config.write_bytes(content)
    done = call("containerd", config)
    assert "k3s makes" in done.output
    text = (k3s / "config.toml.tmpl").read_text()
    base, _, ours = text.partition("\n")
    assert base == '{{ template "base" . }}'
    ours = "".join(line for line in ours.splitlines(keepends=True) if not line.startswith("{{"))
    options = plugin(tomlkit.parse(ours).unwrap(), 2)["containerd"]["runtimes"]["nvidia"]["options"]
    assert options == {"BinaryName": program, "SystemdCgroup": True}
    assert config.read_bytes() == content
    assert "nothing to change" in ok(call("containerd", config))
    ok(call("containerd", config, "--remove"))
    assert os.listdir(k3s) == ["config.toml"]


@pytest.mark.parametrize("since", ["", "# added since\n"])
def test_a_template_that_is_there_is_extended(
    since: str, call: Call, k3s: Path, version: Callable[..., None]
) -> None:
    version(2, 0)
    write(k3s / "config.toml", "version = 3", table(3), "enable_selinux = false")
    template = k3s / "config-v3.toml.tmpl"
    content = '{{ template "base" . }}\n{{ if .NodeConfig }}# theirs{{ end }}'
    template.write_text(content)
    ok(call("containerd", k3s / "config.toml"))
    assert template.read_text().startswith(content)
    assert "nvidia" in template.read_text()
    template.write_text(template.read_text() + since)
    ok(call("containerd", k3s / "config.toml", "--remove"))
    assert template.read_text() == content + ("\n" + since if since else "")


def test_a_template_gets_the_programs_new_path(call: Call, k3s: Path, tmp_path: Path) -> None:
    (k3s / "config.toml").write_bytes((DATA / "kubeadm.toml").read_bytes())
    ok(call("containerd", k3s / "config.toml"))
    other = tmp_path / "gpushim-runtime"
    other.touch(0o755)
    ok(call("containerd", k3s / "config.toml", f"--runtime-path={other}"))
    text = (k3s / "config.toml.tmpl").read_text()
    assert f'BinaryName = "{other}"' in text
    assert text.count("BinaryName =") == 1


def test_k3s_with_containerd_2_gets_a_file_in_the_directory_that_it_imports(
    call: Call, k3s: Path, version: Callable[..., None]
) -> None:
    version(2, 0)
    write(k3s / "config.toml", "version = 3", f'imports = ["{k3s}/config-v3.toml.d/*.toml"]')
    ok(call("containerd", k3s / "config.toml"))
    assert sorted(os.listdir(k3s)) == [
        "config-v3.toml.d",
        "config-v3.toml.d.99-gpushim.toml.after-gpushim",
        "config.toml",
    ]
    assert os.listdir(k3s / "config-v3.toml.d") == ["99-gpushim.toml"]
    ok(call("containerd", k3s / "config.toml", "--remove"))
    assert sorted(os.listdir(k3s)) == ["config-v3.toml.d", "config.toml"]
    assert os.listdir(k3s / "config-v3.toml.d") == []


def test_k3s_knows_nvidias_runtime_by_itself(call: Call, k3s: Path) -> None:
    (k3s / "config.toml").write_bytes((DATA / "nvidias.toml").read_bytes())
    assert "k3s has the runtime nvidia" in refused(call("containerd", k3s / "config.toml", "--force"))


def test_a_runtime_of_this_name_in_the_template(call: Call, k3s: Path) -> None:
    (k3s / "config.toml").write_bytes((DATA / "kubeadm.toml").read_bytes())
    write(k3s / "config.toml.tmpl", '{{ template "base" . }}', table(2, "containerd", "runtimes", '"nvidia"'))
    assert "has a runtime nvidia already" in refused(call("containerd", k3s / "config.toml"))


@pytest.mark.parametrize(
    ("option", "answer"), [("--set-as-default", "default-runtime: nvidia"), ("--cdi", "leaves off")]
)
def test_what_a_template_cannot_say(option: str, answer: str, call: Call, k3s: Path) -> None:
    (k3s / "config.toml").write_bytes((DATA / "kubeadm.toml").read_bytes())
    assert answer in refused(call("containerd", k3s / "config.toml", option))
    assert os.listdir(k3s) == ["config.toml"]


def test_k3s_that_has_never_run(call: Call, k3s: Path) -> None:
    assert "start it once" in refused(call("containerd", k3s / "config.toml"))


def test_microk8s_gets_it_into_its_template(call: Call, config: Path, engines: list[Engine]) -> None:
    generated, template = config.parent / "containerd.toml", config.parent / "containerd-template.toml"
    content = write(template, "version = 2", table(2, "containerd"), 'snapshotter = "${SNAPSHOTTER}"')
    old = write(generated, "version = 2", table(2, "containerd"), 'snapshotter = "overlayfs"')
    engines.append(Engine("containerd", 7, config=str(generated)))
    done = call("containerd", None)
    assert "MicroK8s makes" in done.output
    assert "nvidia" in runtimes(template)
    assert 'snapshotter = "${SNAPSHOTTER}"' in template.read_text()
    assert generated.read_bytes() == old
    ok(call("containerd", None, "--remove"))
    assert template.read_bytes() == content


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


DUMP: dict[str, Any] = {"plugins": {"io.containerd.grpc.v1.cri": {"containerd": {"runtimes": {"runc": RUNC}}}}}
HAS = {"runtimes": {"nvidia": {**RUNC, "options": {"BinaryName": "/usr/bin/gpushim-runtime"}}}}
DUMP_WITH: dict[str, Any] = {"plugins": {"io.containerd.cri.v1.runtime": {"containerd": HAS, "enable_cdi": True}}}


@pytest.mark.parametrize(
    ("options", "dump", "answer", "expected"),
    [
        (Options(), DUMP_WITH, (None, ""), ""),
        (Options(cdi=True), DUMP_WITH, ("/usr/bin/gpushim-runtime", ""), ""),
        (Options(), DUMP, (None, ""), "does not read the runtime nvidia"),
        (
            Options(),
            {**DUMP_WITH, "disabled_plugins": ["io.containerd.grpc.v1.cri"]},
            (None, ""),
            "the CRI is disabled",
        ),
        (Options(default=True), DUMP_WITH, (None, ""), "the default runtime is None"),
        (Options(), DUMP_WITH, ("", ""), "the CRI does not have the runtime nvidia"),
        (Options(), DUMP_WITH, (None, "its CRI plugin is not running"), "its CRI plugin is not running"),
        (Options(remove=True), DUMP, (None, ""), ""),
        (Options(remove=True), DUMP_WITH, (None, ""), "still reads the runtime nvidia"),
        (Options(remove=True), DUMP, ("/usr/bin/gpushim-runtime", ""), "the CRI still has the runtime nvidia"),
    ],
)
def test_verify(
    options: Options,
    dump: dict[str, Any],
    answer: tuple[str | None, str],
    expected: str,
    engines: list[Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines.append(Engine("containerd", 7, started=1.0))
    monkeypatch.setattr(process, "dump", lambda daemon: dump)
    monkeypatch.setattr(process, "asked", lambda daemon, dump, name: answer)
    assert expected in "".join(containerd.verify(options, Plan("/none")))
    assert bool(containerd.verify(options, Plan("/none"))) is bool(expected)


@pytest.mark.parametrize(
    ("later", "answer", "says"),
    [
        (60, (None, ""), "runs since before"),
        (0.2, (None, ""), "runs since before"),
        (0.01, (None, ""), "which of the two came first cannot be told apart; restart it"),
        (0.01, ("/usr/bin/gpushim-runtime", ""), ""),  # of the CRI that runs
        (-0.03, (None, ""), ""),
    ],
)
def test_verify_sees_that_containerd_runs_since_before(
    config: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, later: float, answer: Any, says: str
) -> None:
    write(config, "version = 2")
    os.utime(config, (0, 0))  # as `cp -p` leaves it
    engines.append(Engine("containerd", 7, started=config.stat().st_ctime - later))
    monkeypatch.setattr(process, "dump", lambda daemon: DUMP_WITH)
    monkeypatch.setattr(process, "asked", lambda *_: answer)
    said = "".join(containerd.verify(Options(), Plan(str(config))))
    assert says in said if says else said == ""


def test_a_containerd_that_is_started_next_has_surely_read_the_change(config: Path, call: Call) -> None:
    write(config, "version = 2")
    assert call("containerd", config).exit_code == 0
    started = time.time() - 0.01  # as the kernel tells it at the most
    assert not Engine("containerd", 7, started=started).before(str(config), -running.TICKS)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", (1, 6)),
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", (2, 1)),
        ("containerd github.com/k3s-io/containerd v2.1.5-k3s1", (2, 1)),
        ("containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", (1, 7)),
        ("k3s version v1.34.1+k3s1 (24fc436e)", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_the_version_of_the_running_program(
    printed: str, expected: tuple[int, int], tmp_path: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_version", ASK_VERSION)
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    engines.append(Engine("containerd", 7, exe=script(tmp_path / "containerd", f'echo "{printed}"')))
    assert process.find("").version == expected


def test_a_program_elsewhere_is_not_executed(
    tmp_path: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_version", ASK_VERSION)
    engines.append(Engine("containerd", 7, exe=script(tmp_path / "containerd", f"touch {tmp_path}/marker")))
    assert process.find("").version == (0, 0)
    with pytest.raises(GpushimError, match="link the program of the running one to /usr"):
        process.dump(process.find(""))
    assert not (tmp_path / "marker").exists()


def test_one_in_another_root_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have other names here; what the message advises works where it is."""
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    program = script(tmp_path / "containerd", f"touch {tmp_path}/marker")
    daemon = process.Daemon("/x.toml", Engine("containerd", 7, exe=program, root="/proc/7/root"))
    with pytest.raises(GpushimError, match=f"nsenter --target 7 --mount --root {program} config default` says"):
        process.dump(daemon)
    assert not (tmp_path / "marker").exists()


def test_settings_that_containerd_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    program = script(tmp_path / "containerd", "echo 'containerd: failed to load TOML' >&2; exit 1")
    daemon = process.Daemon("/etc/containerd/config.toml", Engine("containerd", 7, exe=program))
    with pytest.raises(GpushimError, match="failed to load TOML; it would not start either"):
        process.dump(daemon)


def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A containerd with a socket, and its clients in a directory of their own."""
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("x.sock")
    return Daemon("/x", Engine("containerd", 7, argv=("containerd", "-a", f"{tmp_path}/x.sock")))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ('{"config": {"containerd": {"runtimes": {"nvidia": {"options": {"BinaryName": "/a"}}}}}}', ("/a", "")),
        ('{"config": {"containerd": {"runtimes": {"runc": {}}}}}', ("", "")),
        ('{"config": {}}', (None, "")),
        ("no JSON", (None, "")),
    ],
)
def test_what_crictl_says(
    info: str, expected: tuple[str | None, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "crictl", f"echo '{info}'")
    daemon = listening(tmp_path, monkeypatch)
    assert process.asked(daemon, {}, "nvidia") == expected


@pytest.mark.parametrize(("state", "wrong"), [("ok", False), ("error", True)])
def test_what_ctr_says(state: str, wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = f"io.containerd.grpc.v1           cri            linux/amd64    {state}"
    script(tmp_path / "ctr", f'[ "$1" = --address={tmp_path}/x.sock ] && echo "{row}"')
    daemon = listening(tmp_path, monkeypatch)
    program, trouble = process.asked(daemon, {}, "nvidia")
    assert program is None
    assert bool(trouble) is wrong


VALUES = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.text(max_size=8), st.lists(st.text(max_size=3)))
NAMES = st.sampled_from(["plugins", "cri", *imports.CRI.values(), "grpc", "a b", "x.y", "ü", "#", "imports2"])
TREES = st.dictionaries(NAMES, st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES)), max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=TREES, number=st.sampled_from([2, 3]), later=st.booleans())
def test_settings_without_ours_are_the_old_ones(
    data: dict[str, Any], number: int, later: bool, tmp_path: Path, version: Callable[..., None]
) -> None:
    """Whatever is in the file, and also where something was added since."""
    version(*((2, 1) if number == 3 else (1, 7)))
    config = tmp_path / "config.toml"
    if not isinstance(data.get("plugins", {}).get(imports.CRI[number], {}), dict):
        return
    old = tomlkit.dumps({"version": number, **data}).encode()
    config.write_bytes(old)
    files.apply(
        containerd.plan(Options("/usr/bin/gpushim-runtime", config=str(config), default=True, cdi=True)).changes
    )
    assert Toml(config.read_text()).get(("plugins", imports.CRI[number], "containerd", "runtimes", "nvidia"))
    if later:
        config.write_text(config.read_text() + "\n[later]\nx = 1\n")
    files.apply(containerd.plan(Options(config=str(config), remove=True)).changes, undo=True)
    if later:
        assert meaning(config) == {"version": number, **data, "later": {"x": 1}}
    else:
        assert config.read_bytes() == old


@pytest.mark.parametrize("plugins", [20, 80])
def test_removal_parses_each_text_once(
    plugins: int, call: Call, tmp_path: Path, version: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    version(1, 7)
    text = "version = 2\n" + "".join(f'[plugins."x.{number}"]\na = {number}  # b\n' for number in range(plugins))
    write(tmp_path / "config.toml", text)
    ok(call("containerd", tmp_path / "config.toml", "--set-as-default"))
    parser, count = syntax._parser, itertools.count()
    monkeypatch.setattr(syntax, "_parser", lambda: (next(count), parser())[1])
    ok(call("containerd", tmp_path / "config.toml", "--remove"))
    assert next(count) < 8


@pytest.mark.parametrize("folder", ["etc/conf.d", "srv/more/conf.d"])
def test_our_file_goes_that_is_not_imported_any_more(
    folder: str, call: Call, tmp_path: Path, version: Callable[..., None]
) -> None:
    version(2, 0)
    config, drop_ins = tmp_path / "etc" / "config.toml", tmp_path / folder
    drop_ins.mkdir(parents=True)
    write(config, "version = 3", f'imports = ["{drop_ins}/*.toml"]')
    ok(call("containerd", config))
    write(config, "version = 3")
    ok(call("containerd", config, "--remove"))
    assert (os.listdir(drop_ins), [*tmp_path.rglob("*-gpushim")]) == ([], [])


def test_our_file_for_another_containerd_stays(call: Call, tmp_path: Path, version: Callable[..., None]) -> None:
    version(2, 0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "config.toml", "version = 3", 'imports = ["conf.d/*.toml"]')
        ok(call("containerd", tmp_path / name / "config.toml"))
    ok(call("containerd", tmp_path / "one" / "config.toml", "--remove"))
    assert [os.listdir(tmp_path / name / "conf.d") for name in ("one", "two")] == [[], ["99-gpushim.toml"]]


def test_a_default_of_others_keeps_our_entry_until_it_is_taken_out(
    call: Call, config: Path, version: Callable[..., None]
) -> None:
    """The CRI does not start without its default runtime."""
    version(2, 0)
    mine = ["version = 3", 'imports = ["conf.d/*.toml"]']
    write(config, *mine)
    ok(call("containerd", config))
    write(config, *mine, table(3, "containerd"), 'default_runtime_name = "nvidia"')
    said = refused(call("containerd", config, "--remove"))
    assert f"{config}: default_runtime_name is nvidia, which goes with gpushim's entry" in said
    write(config, *mine, table(3, "containerd"))  # as it says
    ok(call("containerd", config, "--remove"))
    assert os.listdir(config.parent / "conf.d") == []
