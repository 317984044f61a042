"""The hook as the process that an engine starts without arguments: what it reads, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuhook.inject.roots import bundle_of
from gpushim.ground.errors import GpushimError
from gpushim.oci.edits import edited
from unit.gpuhook.sandbox import HOOK, TOP

OURS = {"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart", "--rootfs", "/r"]}
NVIDIAS = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of a container that asks for a GPU, on a host that has none."""
    (tmp_path / "b" / "rootfs").mkdir(parents=True)
    (tmp_path / "driver").mkdir()
    (tmp_path / "config.toml").write_text(f'[driver]\nroot = "{tmp_path}/driver"\n[log]\nfile = "{tmp_path}/log"\n')
    write(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all")
    return tmp_path / "b"


def write(bundle: Path, *env: str, **members: Any) -> None:
    process = {"args": ["true"], "env": list(env)}
    (bundle / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}, "process": process, **members}))


def run(bundle: Path, state: dict[str, Any], **env: str) -> tuple[int, str]:
    """Run the hook in the bundle as runc does; return its exit code and what it says."""
    top = bundle.parent
    settings = {"GPUSHIM_CONFIG": f"{top}/config.toml", "GPUSHIM_STATE": f"{top}/state", "PATH": "/usr/bin", **env}
    text = json.dumps(state).encode()
    done = subprocess.run([HOOK, "prestart"], input=text, capture_output=True, env=settings, cwd=bundle, timeout=60)
    said = done.stderr.decode()
    assert said.count("\n") == bool(done.returncode)
    return done.returncode, said


@pytest.mark.parametrize("key", ["bundle", "bundlePath", None])
def test_the_bundle_is_found(bundle: Path, pid: int, key: str | None) -> None:
    state = {"pid": pid, key: str(bundle)} if key else {"pid": pid}
    code, said = run(bundle, state)
    assert code == 12
    assert "NVIDIA_VISIBLE_DEVICES asks for GPUs: " in said


def test_the_settings_are_the_engines(bundle: Path, pid: int) -> None:
    code, said = run(bundle, {"pid": pid}, GPUSHIM_STATE="relative")
    assert (code, "GPUSHIM_STATE" in said) == (15, True)


@pytest.mark.parametrize("env", [[], ["NVIDIA_VISIBLE_DEVICES=void"], ["NVIDIA_VISIBLE_DEVICES="]])
def test_without_a_request_nothing_happens(bundle: Path, pid: int, env: list[str]) -> None:
    write(bundle, *env)
    assert run(bundle, {"pid": pid}) == (0, "")
    assert not list((bundle / "rootfs").iterdir())


def test_what_policy_forbids_is_logged(bundle: Path, pid: int) -> None:
    with (bundle.parent / "config.toml").open("a") as config:
        config.write("[requests]\naccept-env-when-unprivileged = false\n")
    assert run(bundle, {"pid": pid, "id": "c1"}) == (0, "")
    (line,) = [json.loads(text) for text in (bundle.parent / "log").read_text().splitlines()]
    assert (line["container"], line["msg"], line["by"]) == ("c1", "no GPU", "gpushim-hook")


@pytest.mark.parametrize(
    ("env", "words"), [("NVIDIA_VISIBLE_DEVICES=all", "asks for GPUs"), ("NVIDIA_DRIVER_CAPABILITIES=x", 'has "x"')]
)
def test_a_refusal_is_a_line_in_the_log(bundle: Path, pid: int, env: str, words: str) -> None:
    write(bundle, "NVIDIA_VISIBLE_DEVICES=all", env)
    assert run(bundle, {"pid": pid, "id": "c1"})[0] != 0
    (line,) = [json.loads(text) for text in (bundle.parent / "log").read_text().splitlines()]
    assert (line["container"], line["level"], line["by"]) == ("c1", "error", "gpushim-hook")
    assert words in line["msg"]


@pytest.mark.parametrize("verb", ["prestart", "createRuntime"])
@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_a_hook_of_our_cdi_spec_does_the_rest(bundle: Path, pid: int, stage: str, verb: str) -> None:
    ours = {**OURS, "args": ["gpushim-hook", verb, "--lib", "libcuda.so.1=/l/libcuda.so.550"]}
    write(bundle, "NVIDIA_VISIBLE_DEVICES=all", hooks={stage: [ours, NVIDIAS]})
    assert run(bundle, {"pid": pid}) == (0, "")


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_a_bundle_that_the_shim_edited_is_left_to_its_hook(bundle: Path, pid: int, stage: str) -> None:
    write(bundle, "NVIDIA_VISIBLE_DEVICES=all", hooks={stage: [NVIDIAS, OURS]})
    assert run(bundle, {"pid": pid}) == (0, "")


@pytest.mark.parametrize(
    ("config", "code", "text"),
    [
        (None, 14, "config.json"),
        ("{", 14, "config.json"),
        ("[]", 14, "is not a JSON object"),
        ('{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}', 14, "root.path"),
        ('{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, "root": {"path": "x"}}', 12, "asks for GPUs"),
        ('{"process": {"env": ["NVIDIA_DRIVER_CAPABILITIES=x", "NVIDIA_VISIBLE_DEVICES=0"]}}', 10, "it may have"),
        ('{"process": 5}', 14, "process"),
        ('{"hooks": {"prestart": 5}}', 0, ""),
    ],
    ids=range(8),
)
def test_a_config_json_that_cannot_be_used(bundle: Path, pid: int, config: str | None, code: int, text: str) -> None:
    (bundle / "config.json").unlink()
    if config is not None:
        (bundle / "config.json").write_text(config)
    done, said = run(bundle, {"pid": pid})
    assert done == code
    assert text in said


@pytest.mark.parametrize("path", [5, "relative", "/a\0b", "/a\ud800", ["/x"]])
def test_a_state_with_an_odd_bundle(path: object) -> None:
    with pytest.raises(GpushimError, match="no absolute path"):
        bundle_of({"bundle": path})


# Says what the hook takes for its bundle where the state on stdin says "/", as a child of some runtime.
ASK = """
import sys
sys.path[:0] = sys.argv[1:]
from gpuhook.inject.roots import bundle_of
print(bundle_of({"bundle": "/"}))
"""
CALLS = {
    "crun's": (["create", "--bundle", "/b", "--pid-file", "/p", "id"], "", "/b"),
    "its short option": (["create", "-b", "/b", "id"], "", "/b"),
    "one word": (["create", "--bundle=/b", "id"], "", "/b"),
    "twice": (["create", "--bundle", "/a", "--bundle=/b", "id"], "", "/b"),
    "none": (["create", "id"], "", "/"),
    "no value": (["create", "id", "--bundle"], "", "/"),
    "relative": (["create", "--bundle", "b", "id"], "", "/"),
    "another mount namespace": (["create", "--bundle", "/b", "id"], "/usr/bin/unshare --mount", "/"),
    "another user": (
        ["create", "--bundle", "/b", "id"],
        "/usr/bin/setpriv --reuid=65534 --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace",
        "/",
    ),
    "another pid namespace": (["create", "--bundle", "/b", "id"], "/usr/bin/unshare --pid --fork", "/"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_bundle_of_who_called(name: str) -> None:
    """A runtime's own words say which bundle it is, where crun's state does not; a stranger's say nothing."""
    words, between, bundle = CALLS[name]
    folders = [f"{TOP}/{part}" for part in ("hook", "shim")]
    child = [*between.split(), "/usr/bin/python3", "-IBS", "-c", ASK, *folders]
    runtime = f"import subprocess; subprocess.run({child!r}, check=True)"
    done = subprocess.run(["/usr/bin/python3", "-IS", "-c", runtime, *words], capture_output=True, check=True)
    assert done.stdout.decode().strip() == bundle


@pytest.mark.parametrize(
    "hooks",
    [
        *[None, [], 5, {}, {"prestart": None}, {"prestart": [None, 5, {}]}, {"prestart": [NVIDIAS]}],
        {"poststop": [OURS]},
        {"prestart": [{**OURS, "args": None}, {**OURS, "args": 5}]},
        {"prestart": 5, "createRuntime": "x"},
        {"prestart": [{**OURS, "path": "gpushim-hook"}]},
        {"prestart": [{**OURS, "args": ["gpushim-hook", "prestart"]}]},
        {"createRuntime": [{**OURS, "args": ["gpushim-hook", "poststop", "--rootfs", "/r"]}]},
    ],
)
def test_hooks_that_are_not_the_shims(hooks: object) -> None:
    assert not edited({"hooks": hooks})


def test_the_hooks_d_file() -> None:
    """Podman refuses a file with an unknown member; a hook without a fixed environment could get an image's."""
    file = json.loads((TOP / "hook/oci-hooks.d/99-gpushim.json").read_text())
    assert file["version"] == "1.0.0"
    assert file.keys() == {"version", "hook", "when", "stages"}
    assert file["hook"].keys() == {"path", "args", "env", "timeout"}
    assert file["hook"]["path"] == "/usr/bin/gpushim-hook"
    assert file["hook"]["args"] == ["gpushim-hook", "prestart"]
    assert file["hook"]["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
