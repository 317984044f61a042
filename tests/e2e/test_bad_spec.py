"""Bad descriptions of containers: config.json is JSON, and says odd things.

Out of scope: requests (test_bad_requests.py); which bundle a command line is about (test_verbs.py).
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from e2e.bad_input import ALL, Scene, ready
from fakehost import Host
from gpushim.oci.edits import hook_args


@pytest.fixture(scope="module")
def shared(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return ready(tmp_path_factory.mktemp("shared"), gpu_host)


@pytest.fixture
def scene(shared: Scene) -> Scene:
    return shared.renew()


# Group 4.
PLACES = [
    *("ociVersion", "hostname", "process", "process.env", "process.env.0", "process.user", "process.args"),
    *("process.user.additionalGids", "process.capabilities", "process.capabilities.bounding", "root", "root.path"),
    *("mounts", "mounts.0", "mounts.0.destination", "mounts.0.source", "mounts.0.options", "annotations", "linux"),
    *("linux.devices", "linux.devices.0", "linux.devices.0.path", "linux.resources", "linux.resources.devices"),
    *("linux.resources.devices.0", "linux.resources.devices.0.access", "linux.resources.devices.0.major"),
    *("linux.namespaces", "linux.namespaces.0", "linux.namespaces.0.type", "hooks", "hooks.prestart"),
    *("hooks.prestart.0", "hooks.prestart.0.path", "hooks.prestart.0.args", "hooks.createRuntime"),
]
VALUES: list[object] = [None, True, -1, "x", [None], [["x"]], {"x": {"x": []}}]


def put(spec: Any, place: str, value: object) -> None:
    """Put a value into a place, below whatever must be there for it."""
    *parents, last = place.split(".")
    for name in parents:
        spec = spec[int(name)] if name.isdigit() else spec[name]
    if last.isdigit():
        spec[int(last)] = value
    else:
        spec[last] = value


@pytest.mark.parametrize("place", PLACES)
def test_wrong_types(scene: Scene, place: str) -> None:
    hook = {"path": "/bin/true", "args": ["true"]}
    scene.ask(ALL, hooks={"prestart": [hook], "createRuntime": [hook]}, annotations={"a": "b"})
    spec = scene.spec
    spec["linux"]["devices"] = [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}]
    first = PLACES.index(place)
    for value in (VALUES[(first + more) % len(VALUES)] for more in (0, 3)):  # of others, see tests/fuzz
        changed = json.loads(json.dumps(spec))
        put(changed, place, value)
        scene.config.write_text(json.dumps(changed))
        scene.answers(0, 14)


PATHS: dict[str, tuple[object, int]] = {
    "empty": ("", 14),
    "number": (1, 14),
    "relative": ("rootfs", 0),
    "climbing": ("../../../../../../../../etc", 0),
    "trailing slash": ("/var/lib/rootfs/", 0),
    "root": ("/", 0),
    "newline": ("/a\nb", 0),
    "long": ("/" + "x" * 5000, 0),
    "surrogate": ("/\udcff", 0),
}


@pytest.mark.parametrize(("path", "code"), PATHS.values(), ids=PATHS)
def test_paths_of_the_rootfs(scene: Scene, path: object, code: int) -> None:
    scene.ask(ALL, root={"path": path})
    scene.answers(code)


# Group 5: what else may stand in the environment. Of several the last one counts, as it does in runc.
VARIABLES: dict[str, tuple[list[str], int, list[str]]] = {
    "no equals sign": (["NVIDIA_VISIBLE_DEVICES", "X", ALL], 0, ["all"]),
    "only one without": (["NVIDIA_VISIBLE_DEVICES"], 0, []),
    "empty name": (["=x", "=", "", ALL], 0, ["all"]),
    "three times": (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=7", "NVIDIA_VISIBLE_DEVICES=1"], 0, ["1"]),
    "last is void": ([ALL, "NVIDIA_VISIBLE_DEVICES=void"], 0, ["all", "void"]),
    "last is unknown": ([ALL, "NVIDIA_VISIBLE_DEVICES=7"], 10, ["all", "7"]),
    "NUL": (["X=a\0b", ALL], 0, ["all"]),
    "NUL in the request": (["NVIDIA_VISIBLE_DEVICES=0\0"], 10, ["0\0"]),
    "surrogate": (["X=\udcff\ud800", ALL], 0, ["all"]),
    "surrogate in the request": (["NVIDIA_VISIBLE_DEVICES=\ud800"], 10, ["\ud800"]),
    "another case": (["nvidia_visible_devices=0"], 0, []),
    "space before the name": ([" NVIDIA_VISIBLE_DEVICES=0"], 0, []),
}  # fmt: skip


@pytest.mark.parametrize(("env", "code", "left"), VARIABLES.values(), ids=VARIABLES)
def test_variables(scene: Scene, env: list[str], code: int, left: list[str]) -> None:
    scene.ask(*env)
    scene.answers(code)
    entries = scene.spec["process"]["env"]
    assert [entry[23:] for entry in entries if entry.startswith("NVIDIA_VISIBLE_DEVICES=")] == left
    assert [entry for entry in env if "DEVICES=" not in entry] == [entry for entry in entries if entry in env][
        :-1
    ] or (len(left) != 1 or code)


# Group 6.
def marked(value: Any) -> Any:
    """Add a member that nobody knows to every object."""
    if isinstance(value, dict):
        odd = {"u\u2028\u00e9/": [2**60 + 1, {"y": None}], "Z": "NUMBERS"}
        return {"a-first": 1, **{key: marked(item) for key, item in value.items()}, **odd}
    return [marked(item) for item in value] if isinstance(value, list) else value


def test_unknown_members_at_every_level_survive(scene: Scene) -> None:
    numbers = b"[-0, -0.0, 0.0, 1.0, 1, 1e3, 1E+3, 1e-7, 1e400, 9007199254740993, 123456789012345678901234567890]"
    text = json.dumps(marked(scene.plain)).encode().replace(b'"NUMBERS"', numbers)
    scene.config.write_bytes(text.replace(b'"HOSTNAME=web"', b'"%b"' % ALL.encode()))
    scene.answers(0)
    assert scene.nodes
    assert scene.config.read_bytes().count(numbers.replace(b" ", b"")) == text.count(numbers)


# Groups 7 and 8.
NVIDIA = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
OTHER = {"path": "/usr/bin/other", "args": ["other", "nvidia-container-runtime-hook"]}


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_two_that_inject(scene: Scene, stage: str) -> None:
    """docker --gpus has put NVIDIA's hook there, or a hooks.d directory of Podman's."""
    scene.ask(ALL, hooks={stage: [NVIDIA, OTHER, NVIDIA], "poststop": [OTHER]})
    scene.answers(0)
    hooks = scene.spec["hooks"]
    assert [hook["path"] for hook in hooks.pop(stage) if not hook_args(hook)] == ["/usr/bin/other"]
    assert "nvidia-container-runtime-hook" not in str([hook["path"] for stage in hooks.values() for hook in stage])
    assert "gpushim-hook" in str(scene.spec["hooks"]["prestart"])


def test_again_and_again(scene: Scene) -> None:
    scene.ask(ALL, hooks={"prestart": [NVIDIA]})
    scene.answers(0)
    for _ in range(3):
        scene.untouched()


# Group 9.
@pytest.mark.parametrize("version", ["0.5.0", "1.0.0-rc1", "1.9.9", "99.0.0", "", "x", None, 1, "absent"])
def test_versions_of_the_specification(scene: Scene, version: object) -> None:
    process = {**scene.plain["process"], "capabilities": ["CAP_SYS_ADMIN"]} if version == "0.5.0" else None
    scene.ask(ALL, ociVersion=version, **({"process": process} if process else {}))
    if version == "absent":
        scene.config.write_text(json.dumps({key: item for key, item in scene.spec.items() if key != "ociVersion"}))
    scene.answers(0)
    assert scene.nodes


# Group 10: how runc finds it is in test_verbs.py; here, that odd names arrive as they came.
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *zip([" ", "a b", "a\nb", "\udcff\udc80", "-b"], itertools.cycle(["--bundle", "-b", "--bundle="])),
        *zip(["--", "*", "$(x)", "'\"", "x" * 255], itertools.cycle(["--bundle", "-b", "--bundle="])),
    ],
)
def test_names_of_bundles(scene: Scene, name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.bundle)
    (scene.bundle / name).mkdir()
    scene.config.rename(scene.bundle / name / "config.json")
    scene.answers(0, args=("create", *([form + name] if form.endswith("=") else [form, name]), "x1"))
    scene.config = scene.bundle / name / "config.json"
    assert scene.nodes
    scene.config = scene.bundle / "config.json"


def test_the_working_directory(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.bundle)
    scene.answers(0, args=("create", "x1"))
    assert scene.nodes
