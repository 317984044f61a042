"""k3s and rke2 write what they find on their PATH into config.toml, in either order with `gpushim configure`.

What they make of a template is made here by Go's text/template, as they do it, of a base with what theirs has.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit

from unit.gpushim.engines.containerd.test_containerd import Call, ok, plugin, refused

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
    env = {"GOCACHE": f"{folder}/cache", "HOME": str(folder), "PATH": "/usr/bin:/bin", "GO111MODULE": "off"}
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
