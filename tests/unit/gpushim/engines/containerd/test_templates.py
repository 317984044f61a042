"""`gpushim configure containerd` where a service makes the settings of a template: k3s, rke2 and MicroK8s.

What k3s makes of a template is made here by Go's text/template, as it does that, of a base with what its own has: it
writes what it finds on its PATH into config.toml, in either order with `gpushim configure`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit

import scratch
from gpushim.engines.processes.running import Engine
from unit.gpushim.engines.containerd.conftest import Call, plugin, runtimes, table, tree, write
from unit.gpushim.engines.results import ok, refused

pytestmark = pytest.mark.usefixtures("version")

DATA = Path(__file__).parents[4] / "data" / "engines" / "containerd"
GO = next((path for path in ("/usr/local/go/bin/go", "/usr/bin/go") if Path(path).exists()), "")
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
NAMES = {2: "config.toml.tmpl", 3: "config-v3.toml.tmpl"}
NVIDIAS = "/usr/bin/nvidia-container-runtime"
MAIN = """package main

import (
	"os"
	"text/template"
)

type Runtime struct{ RuntimeType, BinaryName string }
type Config struct{ ExtraRuntimes map[string]Runtime }

func main() {
	user, _ := os.ReadFile(os.Args[1])
	base, _ := os.ReadFile(os.Args[2])
	compiled := template.Must(template.New("user").Parse(string(user)))
	template.Must(compiled.New("base").Parse(string(base)))
	config := Config{map[string]Runtime{}}
	if len(os.Args) > 3 {
		config.ExtraRuntimes["nvidia"] = Runtime{"io.containerd.runc.v2", os.Args[3]}
	}
	if err := compiled.Execute(os.Stdout, config); err != nil {
		panic(err)
	}
}
"""
BASE = """version = {version}
[plugins."{cri}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."{cri}".containerd.runtimes.runc.options]
SystemdCgroup = true
{{{{range $name, $runtime := .ExtraRuntimes}}}}
[plugins."{cri}".containerd.runtimes."{{{{$name}}}}"]
runtime_type = "{{{{$runtime.RuntimeType}}}}"
[plugins."{cri}".containerd.runtimes."{{{{$name}}}}".options]
BinaryName = "{{{{$runtime.BinaryName}}}}"
{{{{end}}}}
"""
Start = Callable[..., None]


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not GO:
        pytest.skip("there is no Go, whose templates k3s has")
    folder = tmp_path_factory.mktemp("go")
    (folder / "main.go").write_text(MAIN)
    env = {"GOCACHE": str(scratch.CACHE / "go"), "HOME": str(folder), "PATH": "/usr/bin:/bin", "GO111MODULE": "off"}
    subprocess.run([GO, "build", "-o", "render", "main.go"], cwd=folder, env=env, check=True)
    return folder / "render"


@pytest.fixture(params=[2, 3])
def number(request: pytest.FixtureRequest, version: Callable[[int, int], None]) -> int:
    version(1 if request.param == 2 else 2, 7 if request.param == 2 else 0)
    return int(request.param)


@pytest.fixture
def start(renderer: Path, number: int, k3s: Path) -> Start:
    """A function that does what k3s does at its start, with what it finds on its PATH."""

    def start(*found: str) -> None:
        base, template = k3s / "base", k3s / NAMES[number]
        base.write_text(BASE.format(version=number, cri=CRI[number]))
        words = [str(renderer), str(template if template.exists() else base), str(base), *found]
        (k3s / "config.toml").write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)
        base.unlink()

    start()
    return start


def made(k3s: Path, number: int) -> str:
    """Return the program of the runtime in the generated file, which containerd could not read if it stood twice."""
    data = tomlkit.parse((k3s / "config.toml").read_text()).unwrap()
    return str(plugin(data, number)["containerd"]["runtimes"].get("nvidia", {}).get("options", {}).get("BinaryName"))


def test_a_program_that_appears_afterwards_keeps_no_containerd_from_starting(
    call: Call, k3s: Path, number: int, start: Start, program: str
) -> None:
    ok(call("containerd", k3s / "config.toml"))
    start()
    assert made(k3s, number) == program
    start(NVIDIAS)
    assert made(k3s, number) == NVIDIAS
    assert "counts while it finds that" in ok(call("containerd", k3s / "config.toml"))
    start()
    assert made(k3s, number) == program
    ok(call("containerd", k3s / "config.toml", "--remove"))
    assert not (k3s / NAMES[number]).exists()


def test_a_program_that_was_there_before(call: Call, k3s: Path, number: int, start: Start) -> None:
    start(NVIDIAS)
    assert "k3s has the runtime nvidia" in refused(call("containerd", k3s / "config.toml"))
    assert not (k3s / NAMES[number]).exists()


def test_gpushim_s_own_link_is_found_by_k3s(call: Call, k3s: Path, number: int, start: Start, program: str) -> None:
    """The package gpushim-nvidia-compat has it: the same program, whoever names it."""
    link = k3s / "nvidia-container-runtime"
    link.symlink_to(program)
    start(str(link))
    ok(call("containerd", k3s / "config.toml"))
    start(str(link))
    assert made(k3s, number) == str(link)


@pytest.mark.parametrize("word", ["", "--remove"])
def test_a_file_that_has_the_table_twice_stops_nothing(
    call: Call, k3s: Path, number: int, start: Start, word: str
) -> None:
    """As an earlier version's template made it."""
    ok(call("containerd", k3s / "config.toml"))
    template = k3s / NAMES[number]
    lines = template.read_text().splitlines(keepends=True)
    template.write_text("".join(line for line in lines if "{{ if not" not in line and "{{ end }}" not in line))
    start(NVIDIAS)
    with pytest.raises(tomlkit.exceptions.TOMLKitError):
        made(k3s, number)
    ok(call("containerd", k3s / "config.toml", *filter(None, [word])))
    start(NVIDIAS)
    assert made(k3s, number) == NVIDIAS
    assert template.exists() is not bool(word)


def test_a_generated_file_that_is_no_toml_at_all_keeps_nothing_of_ours(
    call: Call, k3s: Path, number: int, start: Start
) -> None:
    ok(call("containerd", k3s / "config.toml"))
    (k3s / "config.toml").write_text("[[")
    assert "is not TOML" in refused(call("containerd", k3s / "config.toml"))
    ok(call("containerd", k3s / "config.toml", "--remove"))
    assert not (k3s / NAMES[number]).exists()


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
    if since:  # as packages print it
        command = ok(call("containerd", k3s / "config.toml", "--remove", "--by-hand")).splitlines()[0]
        subprocess.run(["/bin/sh", "-ec", command], check=True)
    else:
        ok(call("containerd", k3s / "config.toml", "--remove"))
    assert template.read_text().split() == f"{content}\n{since}".split()


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
    assert {*tree(k3s)} == {"config-v3.toml.d/99-gpushim.toml", "config.toml"}
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
