"""create.py as a process, from the launcher to a low-level runtime that records how it was called."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Iterator

import pytest

import fakehost
from e2e import recorder
from e2e.witness import settings
from gpushim.create import precompile
from unit import imports
from unit.gpushim.inventory.machine import end

pytestmark = pytest.mark.slow

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


def test_the_whole_story(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0,2")
    done = shim.create()
    assert (done.returncode, done.stderr) == (0, "")
    assert shim.seen()["argv"][0] == str(shim.low)
    assert shim.seen()["argv"][-1] == "x1"
    wanted = {f"/dev/nvidia{shim.host.gpus[i].minor}": (195, shim.host.gpus[i].minor) for i in (0, 2)}
    wanted |= {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (508, 0), "/dev/nvidia-uvm-tools": (508, 1)}
    assert nodes(shim.spec) == wanted
    (hook,) = [hook for hook in shim.spec["hooks"]["prestart"] if "gpushim" in hook["path"]]
    assert os.access(hook["path"], os.X_OK)
    assert os.path.isabs(hook["path"])
    assert hook["env"]


def test_a_second_create_changes_nothing(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=all")
    shim.create()
    first = (shim.bundle / "config.json").read_bytes(), (shim.bundle / "config.json").stat()
    assert shim.create().returncode == 0
    second = (shim.bundle / "config.json").read_bytes(), (shim.bundle / "config.json").stat()
    assert first[0] == second[0]
    assert (first[1].st_ino, first[1].st_mtime_ns) == (second[1].st_ino, second[1].st_mtime_ns)


@pytest.mark.parametrize(
    "env", [[], ["NVIDIA_VISIBLE_DEVICES=void"], ["NVIDIA_VISIBLE_DEVICES="], ["X=CUDA_VERSION"]]
)
def test_without_a_request_the_file_is_not_touched(shim: Shim, env: list[str]) -> None:
    shim.ask(*env)
    before = (shim.bundle / "config.json").stat()
    assert shim.create().returncode == 0
    after = (shim.bundle / "config.json").stat()
    assert (before.st_ino, before.st_mtime_ns, before.st_size) == (after.st_ino, after.st_mtime_ns, after.st_size)
    assert shim.seen() is not None


def test_unknown_members_and_number_forms_survive(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    path = shim.bundle / "config.json"
    path.write_text(path.read_text().rstrip()[:-1] + ', "x": {"y": [1.0, 1e3, -0], "clone3": "\\u00e9"}}')
    assert shim.create().returncode == 0
    assert '"x":{"y":[1.0,1e3,-0],"clone3":"\\u00e9"}' in path.read_text()


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        (["NVIDIA_VISIBLE_DEVICES=7"], 10, '"7"'),
        (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=x"], 10, "NVIDIA_DRIVER_CAPABILITIES"),
        (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.3"], 11, "unsatisfied condition: cuda>=12.3"),
    ],
)
def test_a_refusal_is_one_sentence_in_both_places(shim: Shim, env: list[str], code: int, words: str) -> None:
    shim.ask(*env)
    before = (shim.bundle / "config.json").read_bytes()
    done = shim.create()
    assert done.returncode == code
    assert done.stderr.startswith("gpushim: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    line = json.loads(shim.log.read_text())
    assert line["level"] == "error"
    assert line["msg"] == done.stderr.rstrip("\n")
    assert line["time"]
    assert shim.seen() is None
    assert (shim.bundle / "config.json").read_bytes() == before
    assert sorted(os.listdir(shim.bundle)) == ["config.json"]


def test_a_refusal_in_runcs_text_format(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=7")
    shim.create("--log-format", "text")
    assert shim.log.read_text().startswith('time="20')
    assert 'level=error msg="gpushim: ' in shim.log.read_text()


@pytest.mark.parametrize("log", ["/nonexistent/x/log", "/dev/full", "/"])
def test_trouble_with_the_log_is_not_trouble(shim: Shim, log: str) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.toml.write_text(shim.toml.read_text().replace(str(shim.work / "gpushim.log"), log))
    assert shim.create().returncode == 0
    shim.ask("NVIDIA_VISIBLE_DEVICES=7")
    assert shim.create("--log", log).returncode == 10


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


def test_everything_reaches_the_runtime_as_it_came(shim: Shim, tmp_path: Path) -> None:
    def set_up() -> None:
        os.umask(0o027)
        recorder.ignore_only()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    args = ["create", "--bundle", str(shim.bundle), "a b", "", "new\nline", "\udcff'\""]
    with (tmp_path / "f").open("w") as file:
        done = shim.create(args=args, env={"A": "\udcfe"}, preexec_fn=set_up, cwd="/usr", pass_fds=[file.fileno()])
        assert done.returncode == 0, done.stderr
        seen = shim.seen()
        assert set(seen["fds"]) == {0, 1, 2, file.fileno()}
    assert seen["argv"][-4:] == args[-4:]
    assert "A=\udcfe" in seen["env"]
    assert {entry.partition("=")[0] for entry in seen["env"]} == {*shim.env, "RECORD", "A", "PWD"}
    assert seen["cwd"] == "/usr"
    assert seen["Umask"].strip() == "0027"
    assert recorder.ignored(seen) == set()
    assert int(seen["SigBlk"], 16) == 1 << (signal.SIGUSR2 - 1)


def test_signals_that_were_ignored_stay_ignored(shim: Shim) -> None:
    def ignore() -> None:
        recorder.ignore_only(signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ)

    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create(preexec_fn=ignore, restore_signals=False)
    assert recorder.ignored(shim.seen()) == {signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ}


@pytest.mark.parametrize("value", [None, "C.UTF-8", "de_DE.UTF-8", ""])
def test_lc_ctype_is_what_it_was(shim: Shim, value: str | None) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create(env={} if value is None else {"LC_CTYPE": value})
    assert [entry for entry in shim.seen()["env"] if entry.startswith("LC_")] == (
        [] if value is None else [f"LC_CTYPE={value}"]
    )


def test_it_execs_and_does_not_fork(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    command = [str(LAUNCHER), "create", "--bundle", str(shim.bundle), "x"]
    with subprocess.Popen(command, env={**shim.env, "RECORD": str(shim.record), "RECORD_EXIT": "7"}) as child:
        assert child.wait(60) == 7
    assert shim.seen()["pid"] == child.pid


def test_run_is_edited_as_create_is(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert shim.create(args=["run", "-b", str(shim.bundle), "x"]).returncode == 0
    assert nodes(shim.spec)


def test_a_relative_rootfs_is_taken_against_the_bundle(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0", root={"path": "root fs"})
    shim.create(args=["create", "-b", "bundle", "x"], cwd=shim.work)
    (hook,) = [hook for hook in shim.spec["hooks"]["prestart"] if "gpushim" in hook["path"]]
    assert hook["args"][3] == str(shim.bundle / "root fs")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"root": None}, "no root.path"),
        ({"root": {"path": 1}}, "no root.path"),
        ({"mounts": {}}, '"mounts" is not a list'),
        ({"linux": []}, "linux"),
        ({"annotations": {"cdi.k8s.io/x": 1}}, "cdi.k8s.io/x"),
    ],
)
def test_a_config_of_wrong_types_is_refused(shim: Shim, members: dict[str, Any], words: str) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0", **members)
    done = shim.create()
    assert done.returncode in (10, 14)
    assert words in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("content", [b"[]", b'{"NVIDIA_VISIBLE_DEVICES":', b'"NVIDIA_VISIBLE_DEVICES', b"\xff" * 9])
def test_a_config_that_is_no_object(shim: Shim, content: bytes) -> None:
    (shim.bundle / "config.json").write_bytes(content + b" NVIDIA_VISIBLE_DEVICES")
    done = shim.create()
    assert done.returncode == 14
    assert str(shim.bundle / "config.json") in done.stderr


def test_the_first_create_refreshes_and_the_next_does_not(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert not shim.state.exists()
    shim.create()
    written = (shim.state / "inventory.json").stat().st_mtime_ns
    shim.create()
    assert (shim.state / "inventory.json").stat().st_mtime_ns == written
    assert (shim.state / "runtime").read_text() == f"{shim.low}\n"


def test_a_create_does_not_wait_for_nvml_when_nothing_changed(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create()
    shim.host.behave(hang=True)
    shim.ask("NVIDIA_VISIBLE_DEVICES=1")
    assert shim.create().returncode == 0
    assert len(nodes(shim.spec)) == 4


def test_a_hanging_nvml_ends_with_a_sentence(shim: Shim) -> None:
    with shim.toml.open("a") as toml:
        toml.write("[refresh]\ndeadline-seconds = 1\n")
    shim.host.behave(hang=True)
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    done = shim.create()
    end(str(shim.state))  # the refresh goes on
    assert done.returncode == 12
    assert "persistence mode" in done.stderr


@pytest.mark.parametrize("toml", ["[driver\n", "[driver]\nroots = 1\n", "[runtime]\nlow-level = 3\n"])
def test_a_broken_configuration_harms_only_who_asks(shim: Shim, toml: str) -> None:
    shim.toml.write_text(toml)
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    done = shim.create()
    assert done.returncode == 15
    assert str(shim.toml) in done.stderr
    shim.ask("NVIDIA_VISIBLE_DEVICES=void")
    done = shim.create("--version")  # the real runc, since the configuration cannot be read
    assert done.returncode == 0
    assert "runc" in done.stdout


SWARM = '[requests]\nswarm-variables = ["DOCKER_RESOURCE_GPU"]\n'
MOUNT = {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}
BROKEN = [
    # a configuration that is wrong, what a container has, whether it may have meant a GPU
    (SWARM + "accept-volume-mount = true\n", {"env": ["DOCKER_RESOURCE_GPU=0"]}, True),
    ("[requests]\nswarm-variables = [DOCKER_RESOURCE_GPU]\n", {"env": ["DOCKER_RESOURCE_GPU=0"]}, True),
    ("[requests]\nswarm-variable = ['DOCKER_RESOURCE_GPU']\n", {"env": ["DOCKER_RESOURCE_GPU=0"]}, True),
    ("[requests]\n# swarm-variables = ['DOCKER_RESOURCE_GPU']\nx = 1\n", {"env": ["DOCKER_RESOURCE_GPU=0"]}, False),
    ("[requests]\naccept-volume-mounts = 1\n", {"mounts": [MOUNT]}, True),
    ("[cdi]\nannotation-prefixes = 'a.com/'\n", {"annotations": {"a.com/x": "nvidia.com/gpu=0"}}, True),
    ("x = 1\n", {"annotations": {"a.com/x": "nvidia.com/gpu=0"}}, False),
    ("x = 1\n", {"env": ["CUDA_VERSION=8.0"]}, True),
    ("x = 1\n", {"env": ["CUDA_VERSION=12.0", "NVIDIA_REQUIRE_CUDA=cuda>=12"]}, False),
    ("x = 1\n", {"env": ["NVIDIA_VISIBLE_DEVICES="]}, False),
]


@pytest.mark.parametrize(("toml", "members", "asks"), BROKEN)
def test_under_a_wrong_configuration_nothing_that_may_ask_starts(
    shim: Shim, toml: str, members: Any, asks: bool
) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert shim.create().returncode == 0
    shim.toml.write_text(toml)
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


def test_a_half_upgraded_driver_is_refused(own: Shim) -> None:
    own.host.half_upgrade("535.54.03")
    own.ask("NVIDIA_VISIBLE_DEVICES=0")
    done = own.create()
    assert done.returncode == 13
    assert "535.54.03" in done.stderr
    assert "535.183.01" in done.stderr


def test_no_driver_is_refused_and_remembered(own: Shim) -> None:
    shutil.rmtree(f"{own.host.root}/proc")
    own.ask("NVIDIA_VISIBLE_DEVICES=all")
    done = own.create()
    assert done.returncode == 12
    assert "no NVIDIA driver is loaded" in done.stderr
    written = (own.state / "inventory.json").stat().st_mtime_ns
    assert own.create().returncode == 12
    assert (own.state / "inventory.json").stat().st_mtime_ns == written


def test_a_snapshot_that_others_could_have_written_is_not_used(shim: Shim) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create()
    snapshot = shim.state / "inventory.json"
    snapshot.write_text(snapshot.read_text().replace("/dev/nvidia1", "/dev/sda"))
    snapshot.chmod(0o666)
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    assert shim.create().returncode == 0
    assert snapshot.stat().st_mode & 0o777 == 0o644
    assert not any("sda" in device["path"] for device in shim.spec["linux"]["devices"])


def test_a_runtime_that_cannot_be_executed(shim: Shim, tmp_path: Path) -> None:
    shim.ask("NVIDIA_VISIBLE_DEVICES=0")
    shim.create()
    fake = tmp_path / "fake"
    fake.write_bytes(b"\x7fELF not really")
    fake.chmod(0o755)
    shim.toml.write_text(shim.toml.read_text().replace(str(shim.low), str(fake)))
    done = shim.create()
    assert done.returncode == 126
    assert str(fake) in done.stderr


IMPORTS = {
    "gpushim", "gpushim.ground", "gpushim.ground.errors", "gpushim.ground.bounds", "gpushim.ground.fastjson",
    "gpushim.ground.system", "gpushim.paths", "gpushim.paths.trust", "gpushim.paths.logfile", "gpushim.oci",
    "gpushim.oci.bundle", "gpushim.oci.authorization", "gpushim.oci.selection", "gpushim.oci.device_list",
    "gpushim.oci.require", "gpushim.oci.request", "gpushim.oci.edits", "gpushim.oci.hookargs", "gpushim.inventory",
    "gpushim.inventory.stamp", "gpushim.inventory.ensure", "gpushim.decision", "gpushim.decision.plan",
    "gpushim.decision.decide", "gpushim.create", "gpushim.create.create", "_json", "__future__",
}  # fmt: skip


def create_imports(shim: Shim) -> dict[str, float]:
    """Name the modules that a create imports, with their milliseconds."""
    args = ["create", str(shim.low), "", "create", str(shim.bundle), "x", "", "text", "0", "", str(LAUNCHER), "state"]
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


def test_a_cdi_device_of_another_vendor(vendor: Shim) -> None:
    vendor.ask("NVIDIA_VISIBLE_DEVICES=vendor.com/card=a")
    assert vendor.create().returncode == 0
    env = vendor.spec["process"]["env"]
    assert [entry for entry in env if "VISIBLE" in entry or "VENDOR" in entry] == [
        "NVIDIA_VISIBLE_DEVICES=void", "VENDOR=a",
    ]  # fmt: skip
    assert [node["path"] for node in vendor.spec["linux"]["devices"] if node["path"] == "/dev/full"]
    assert nodes(vendor.spec) == {}
    assert "gpushim-hook" not in json.dumps(vendor.spec)
    first = (vendor.bundle / "config.json").stat().st_ino
    assert vendor.create().returncode == 0
    assert (vendor.bundle / "config.json").stat().st_ino == first


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
    vendor.ask("NVIDIA_VISIBLE_DEVICES=void", annotations={"cdi.k8s.io/x": "vendor.com/card=a,nvidia.com/gpu=0"})
    before = (vendor.bundle / "config.json").stat().st_ino
    assert vendor.create().returncode == 0
    assert (vendor.bundle / "config.json").stat().st_ino == before


@pytest.mark.parametrize(("names", "code"), [("vendor.com/card=b", 10), ("0,vendor.com/none=a", 10)])
def test_an_unknown_cdi_device_is_refused(vendor: Shim, names: str, code: int) -> None:
    vendor.ask(f"NVIDIA_VISIBLE_DEVICES={names}")
    done = vendor.create()
    assert done.returncode == code
    assert "gpushim cdi list" in done.stderr
    assert "vendor.com/card=a" not in done.stderr
    assert vendor.seen() is None


CDI_IMPORTS = {"gpushim.cdi", "gpushim.cdi.form", "gpushim.cdi.resolve", "gpushim.cdi.specs"}


def test_devices_of_json_specs_import_little_more(vendor: Shim) -> None:
    vendor.ask("NVIDIA_VISIBLE_DEVICES=vendor.com/card=a")
    vendor.create()
    vendor.ask("NVIDIA_VISIBLE_DEVICES=vendor.com/card=a")
    assert set(create_imports(vendor)) == IMPORTS | CDI_IMPORTS
