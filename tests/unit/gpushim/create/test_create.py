"""create.py as a process, from the launcher to a low-level runtime that records how it was called."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Iterator

import pytest

import fakehost
from e2e import recorder
from e2e.witness import settings
from gpushim.create import precompile
from gpushim.oci.edits import hook_args
from unit import imports

TOP = Path(__file__).parents[4]
LAUNCHER = TOP / "bin" / "gpushim-runtime"
CONFIG = TOP / "tests" / "data" / "docker-config.json"


class Shim:
    """A simulated host, a bundle, and the runtime in front of the recorder."""

    def __init__(self, work: Path, host: fakehost.Host, low: Path) -> None:
        self.host, self.low, self.work = host, low, work
        self.bundle = work / "bundle"
        self.bundle.mkdir()
        self.env = settings(work, host.root, str(low))
        self.state = Path(self.env["GPUSHIM_STATE"])
        self.toml = Path(self.env["GPUSHIM_CONFIG"])
        self.log, self.record = work / "log.json", work / "record.json"
        self.ask()

    def ask(self, *env: str, **members: Any) -> None:
        """Write config.json as Docker does, with these variables behind the image's."""
        spec = json.loads(CONFIG.read_text())
        spec["process"]["env"] += env
        spec.update(members)
        (self.bundle / "config.json").write_text(json.dumps(spec, indent=1))

    @property
    def spec(self) -> Any:
        return json.loads((self.bundle / "config.json").read_text())

    def create(self, *before: str, args: list[str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        """Call the runtime as containerd's shim does."""
        self.record.unlink(missing_ok=True)
        env = {**self.env, "RECORD": str(self.record), **options.pop("env", {})}
        words = args or ["create", "--bundle", str(self.bundle), "--pid-file", str(self.work / "pid"), "x1"]
        command = [str(LAUNCHER), "--log", str(self.log), "--log-format", "json", *before, *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, **options)

    def seen(self) -> Any:
        """What the low-level runtime saw, or None if it was not reached."""
        return recorder.read(self.record) if self.record.exists() else None

    def logged(self) -> list[Any]:
        """The lines of gpushim's own log."""
        path = self.work / "gpushim.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="session")
def low(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorder.build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> fakehost.Host:
    return fakehost.build(str(tmp_path_factory.mktemp("host")), 3)


@pytest.fixture
def shim(tmp_path: Path, host: fakehost.Host, low: Path) -> Iterator[Shim]:
    """A shim on a host that is whole again afterwards."""
    yield Shim(tmp_path, host, low)
    host.behave()


@pytest.fixture
def own(tmp_path: Path, low: Path) -> Shim:
    """A shim on a host of its own, which the test may damage."""
    return Shim(tmp_path, fakehost.build(str(tmp_path / "host"), 3), low)


def nodes(spec: Any) -> dict[str, tuple[int, int]]:
    return {d["path"]: (d["major"], d["minor"]) for d in spec["linux"]["devices"] or [] if "nvidia" in d["path"]}


def test_a_refusal_in_runcs_text_format(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=7")
    shim.create("--log-format", "text")
    assert shim.log.read_text().startswith('time="20')
    assert 'level=error msg="gpushim: ' in shim.log.read_text()


def test_runcs_log_is_not_written_through_a_link(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=7")
    (shim.work / "link").symlink_to("target")
    assert shim.create("--log", str(shim.work / "link")).returncode == 10
    assert not (shim.work / "target").exists()


def test_the_log_has_one_line_per_gpu_container(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=1")
    shim.create()
    shim.ask()
    shim.create()
    (line,) = shim.logged()
    assert line["container"] == "x1"
    assert line["request"] == "env NVIDIA_VISIBLE_DEVICES=1"
    assert line["gpus"] == [shim.host.gpus[1].uuid]
    assert line["milliseconds"] > 0
    assert line["time"].endswith("Z")


def test_what_policy_forbids_is_logged(shim: Shim) -> None:
    shim.toml.write_text(shim.toml.read_text() + "[requests]\naccept-env-when-unprivileged = false\n")
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    before = (shim.bundle / "config.json").read_bytes()
    assert shim.create().returncode == 0
    assert (shim.bundle / "config.json").read_bytes() == before
    (line,) = shim.logged()
    assert line["msg"] == "no GPU"
    assert "accept-env-when-unprivileged is false" in line["ignored"][0]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("NVIDIA_VISIBLE_DEVICES=9", '"9", but this host has'),
        ("NVIDIA_DRIVER_CAPABILITIES=x", 'NVIDIA_DRIVER_CAPABILITIES has "x"'),
        ("NVIDIA_REQUIRE_CUDA=cuda>=99", "unsatisfied condition"),
    ],
)
def test_a_refusal_is_a_line_in_the_log(shim: Shim, env: str, words: str) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0", env)
    assert shim.create().returncode in (10, 11)
    (line,) = shim.logged()
    assert (line["level"], line["container"]) == ("error", "x1")
    assert words in line["msg"]
    assert line["time"].endswith("Z")


def test_a_wrong_configuration_is_told_to_the_log_of_the_last_one(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create()
    shim.toml.write_text("[driver\n")
    assert shim.create().returncode == 15
    assert "is not TOML" in shim.logged()[-1]["msg"]


def test_other_verbs_leave_no_line(shim: Shim) -> None:
    shim.toml.write_text(shim.toml.read_text().replace(str(shim.low), str(LAUNCHER)))
    assert shim.create(args=["state", "x"]).returncode == 126
    assert shim.logged() == []


@pytest.mark.parametrize("value", [None, "C.UTF-8", "de_DE.UTF-8", ""])
def test_lc_ctype_is_what_it_was(shim: Shim, value: str | None) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create(env={} if value is None else {"LC_CTYPE": value})
    assert [entry for entry in shim.seen()["env"] if entry.startswith("LC_")] == (
        [] if value is None else [f"LC_CTYPE={value}"]
    )


def test_run_is_edited_as_create_is(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert shim.create(args=["run", "-b", str(shim.bundle), "x"]).returncode == 0
    assert nodes(shim.spec)


def test_a_relative_rootfs_is_taken_against_the_bundle(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0", root={"path": "root fs"})
    shim.create(args=["create", "-b", "bundle", "x"], cwd=shim.work)
    assert hook_args(shim.spec["hooks"]["prestart"][-1])[2] == str(shim.bundle / "root fs")


def test_the_first_create_refreshes_and_the_next_does_not(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert not shim.state.exists()
    shim.create()
    written = (shim.state / "inventory.json").stat().st_mtime_ns
    shim.create()
    assert (shim.state / "inventory.json").stat().st_mtime_ns == written
    assert (shim.state / "runtime").read_text() == f"{shim.low}\n"


SWARM = '[requests]\nswarm-variables = ["DOCKER_RESOURCE_GPU"]\n'
MOUNT = {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}
BROKEN = [
    # what a container has, whether it has one of the launcher's words
    ({"env": ["DOCKER_RESOURCE_GPU=0"]}, False),  # which no configuration named that could be read
    ({"mounts": [MOUNT]}, True),
    ({"annotations": {"a.com/x": "nvidia.com/gpu=0"}}, False),
    ({"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}, True),
    ({"env": ["CUDA_VERSION=8.0"]}, True),
    ({"env": ["NVIDIA_VISIBLE_DEVICES="]}, True),
    ({"hooks": {"prestart": [{"path": "/usr/bin/gpushim-hook"}]}}, False),
]


@pytest.mark.parametrize(("members", "asks"), BROKEN)
def test_under_a_wrong_configuration_nothing_with_a_word_starts(shim: Shim, members: Any, asks: bool) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert shim.create().returncode == 0
    shim.toml.write_text(SWARM + "accept-volume-mount = true\n")
    shim.ask(*members.get("env", ()), **{name: value for name, value in members.items() if name != "env"})
    done = shim.create()
    assert done.returncode == (15 if asks else 0)
    assert (str(shim.toml) in done.stderr) is asks
    assert (shim.seen() is None) is asks


def test_the_words_of_the_last_configuration_count_where_this_one_cannot_be_read(shim: Shim) -> None:
    good = shim.toml.read_text() + SWARM
    shim.toml.write_text(good)
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert shim.create().returncode == 0
    shim.toml.unlink()
    shim.toml.mkdir()
    shim.ask("DOCKER_RESOURCE_GPU=0")
    assert shim.create().returncode == 15


@pytest.mark.parametrize("refreshed", [False, True])
def test_a_configuration_that_is_a_link_to_nothing_refuses_who_asks(shim: Shim, refreshed: bool) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert not refreshed or shim.create().returncode == 0
    shim.toml.unlink()
    shim.toml.symlink_to("none")
    done = shim.create()
    assert (done.returncode, f"{shim.toml} cannot be read: it is a link that leads nowhere" in done.stderr) == (
        15,
        True,
    )


def test_a_configuration_that_can_be_read_counts_where_the_host_cannot_be_listed(shim: Shim) -> None:
    shim.toml.write_text(shim.toml.read_text() + SWARM)
    shim.state.mkdir(exist_ok=True)
    shim.state.chmod(0o777)
    shim.ask("DOCKER_RESOURCE_GPU=0")
    done = shim.create()
    assert done.returncode == 12
    assert "cannot be trusted" in done.stderr
    shim.ask("DOCKER_RESOURCE_CPU=0")
    assert shim.create().returncode == 0


class TestNoRuntime:
    """What the configuration names is not there."""

    @pytest.fixture
    def absent(self, shim: Shim) -> Shim:
        shim.ask("NVIDIA_VISIBLE_DEVICES=0")
        assert shim.create().returncode == 0
        shim.toml.write_text(shim.toml.read_text().replace(str(shim.low), "/nowhere/runc"))
        return shim

    @pytest.mark.parametrize("refreshed", [False, True])
    def test_containers_that_are_there_keep_theirs(self, absent: Shim, refreshed: bool) -> None:
        if refreshed:
            absent.create()
        for verb in ("state", "kill", "delete"):
            assert absent.create(args=[verb, "x"]).returncode == 0
            assert absent.seen()["argv"] == [
                str(absent.low),
                "--log",
                str(absent.log),
                "--log-format",
                "json",
                verb,
                "x",
            ]

    def test_without_a_record_it_is_the_hosts(self, absent: Shim) -> None:
        (absent.state / "runtime").unlink()
        done = absent.create("--version", args=["state", "x"])
        assert done.returncode == 0
        assert "runc" in done.stdout

    def test_who_asks_is_refused(self, absent: Shim) -> None:
        for _ in range(2):  # before the refresh of the new configuration, and after it
            absent.ask("NVIDIA_VISIBLE_DEVICES=0")
            done = absent.create()
            assert done.returncode == 127
            assert "no low-level runtime: none of /nowhere/runc" in done.stderr
            assert absent.seen() is None
            assert "devices" not in absent.spec["linux"]

    def test_who_does_not_ask_is_not_harmed(self, absent: Shim) -> None:
        absent.ask()
        assert absent.create().returncode == 0
        assert absent.seen() is not None


def test_before_the_first_refresh_every_verb_gets_the_configured_runtime(shim: Shim) -> None:
    assert shim.create(args=["state", "x"]).returncode == 0
    assert shim.seen()["argv"][-2:] == ["state", "x"]
    shim.ask()
    assert shim.create().returncode == 0
    assert shim.seen()["argv"][0] == str(shim.low)


def test_a_changed_configuration_counts_at_once(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create()
    other = shim.work / "other"
    other.symlink_to(shim.low)
    text = shim.toml.read_text().replace(str(shim.low), str(other))
    shim.toml.write_text(text + '[requests]\nswarm-variables = ["DOCKER_RESOURCE_NVIDIA-GPU"]\n')
    assert shim.create(args=["state", "x"]).returncode == 0
    assert shim.seen()["argv"][0] == str(other)
    shim.ask("DOCKER_RESOURCE_NVIDIA-GPU=1")
    assert shim.create().returncode == 0
    assert len(nodes(shim.spec)) == 4
    assert (shim.state / "triggers").read_text() == "DOCKER_RESOURCE_NVIDIA-GPU\n"


def test_no_driver_is_refused_and_remembered(own: Shim) -> None:
    shutil.rmtree(f"{own.host.root}/proc")
    own.ask("NVIDIA_VISIBLE_DEVICES=all")
    done = own.create()
    assert done.returncode == 12
    assert "no NVIDIA driver is loaded" in done.stderr
    written = (own.state / "inventory.json").stat().st_mtime_ns
    assert own.create().returncode == 12
    assert (own.state / "inventory.json").stat().st_mtime_ns == written


IMPORTS = {
    "gpushim", "gpushim.ground", "gpushim.ground.errors", "gpushim.ground.bounds", "gpushim.ground.fastjson",
    "gpushim.ground.system", "gpushim.paths", "gpushim.paths.trust", "gpushim.paths.walk", "gpushim.paths.logfile",
    "gpushim.oci",
    "gpushim.oci.bundle", "gpushim.oci.authorization", "gpushim.oci.device_names", "gpushim.oci.selection",
    "gpushim.oci.device_list",
    "gpushim.oci.require",
    "gpushim.oci.request", "gpushim.oci.edits", "gpushim.oci.hookargs", "gpushim.inventory",
    "gpushim.inventory.ensure", "gpushim.decision", "gpushim.decision.hook_entry", "gpushim.decision.plan",
    "gpushim.decision.decide", "gpushim.create", "gpushim.create.ahead",
    "gpushim.create.create", "_json", "__future__",
}  # fmt: skip


def create_imports(shim: Shim) -> dict[str, float]:
    """Name the modules that a create imports, with their milliseconds."""
    args = [
        "create",
        str(shim.low),
        "",
        "create",
        str(shim.bundle),
        "x",
        "",
        "text",
        "0",
        "",
        str(LAUNCHER),
        "state",
    ]
    code = f"""
sys.argv = {["stub", *args]!r}
sys.path.append({str(TOP / "shim")!r})
import gpushim.create.create
gpushim.create.create.become = lambda *_: None
gpushim.create.create.main(sys.argv[2:])
"""
    return imports.imported(code, shim.env)


def test_the_create_path_imports_only_this(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create()
    found = create_imports(shim)
    assert not imports.dearer(found, IMPORTS)
    assert set(found) == IMPORTS
    assert {name.rstrip(".") for name in precompile.CREATE.split()} | {"__future__", "_json"} == IMPORTS


def test_a_module_more_is_told_with_its_price() -> None:
    found = imports.imported("import statistics")
    assert found["statistics"] > 0
    assert f"statistics ({found['statistics']:.2f} ms)" in imports.dearer(found, IMPORTS)


@pytest.fixture
def vendor(shim: Shim) -> Shim:
    """The shim, with a CDI spec of another vendor's device."""
    device = {"name": "a", "containerEdits": {"env": ["VENDOR=a"], "deviceNodes": [{"path": "/dev/full"}]}}
    spec = {"cdiVersion": "0.5.0", "kind": "vendor.com/card", "devices": [device]}
    (shim.work / "cdi").mkdir()
    (shim.work / "cdi" / "vendor.json").write_text(json.dumps(spec))
    return shim


def test_what_is_wrong_with_the_policy_is_said_rather_than_what_the_default_forbids(vendor: Shim) -> None:
    vendor.toml.write_text(vendor.toml.read_text() + "[nonsense]\n")
    vendor.ask("NVIDIA_VISIBLE_DEVICES=vendor.com/card=a")
    done = vendor.create()
    assert done.returncode == 15
    assert "nonsense is not a known key" in done.stderr


def test_devices_of_another_vendor_need_no_driver(vendor: Shim) -> None:
    empty = vendor.work / "empty"
    empty.mkdir()
    vendor.toml.write_text(vendor.toml.read_text().replace(vendor.host.root, str(empty)))
    vendor.ask("NVIDIA_VISIBLE_DEVICES=0,vendor.com/card=a")
    assert vendor.create().returncode == 12
    vendor.ask("NVIDIA_VISIBLE_DEVICES=vendor.com/card=a", "NVIDIA_REQUIRE_CUDA=cuda>=99")
    assert vendor.create().returncode == 0
    assert "VENDOR=a" in vendor.spec["process"]["env"]


def test_an_engine_that_has_injected_already_says_void(vendor: Shim) -> None:
    named = {"cdi.k8s.io/x": "vendor.com/card=a,nvidia.com/gpu=0"}
    injected = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}
    vendor.ask("NVIDIA_VISIBLE_DEVICES=void", annotations=named, linux=injected)
    before = (vendor.bundle / "config.json").stat().st_ino
    assert vendor.create().returncode == 0
    assert (vendor.bundle / "config.json").stat().st_ino == before


CDI_IMPORTS = {
    *("gpushim.cdi", "gpushim.cdi.form", "gpushim.cdi.resolve", "gpushim.cdi.specs", "gpushim.oci.foreign_edits")
}


def test_devices_of_json_specs_import_little_more(vendor: Shim) -> None:
    vendor.ask("NVIDIA_VISIBLE_DEVICES=vendor.com/card=a")
    vendor.create()
    vendor.ask("NVIDIA_VISIBLE_DEVICES=vendor.com/card=a")
    assert set(create_imports(vendor)) == IMPORTS | CDI_IMPORTS
