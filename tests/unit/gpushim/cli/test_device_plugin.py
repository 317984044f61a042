"""`gpushim device-plugin`: what it shows of a plugin's answer, and of what is none."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gpushim.cli import main
from gpushim.ground import system
from gpushim.refresh import plugin_socket
from unit.gpushim.cli.commands import apart

FORGED = "x\x1b]0;t\x07\u202e\nok all is well"
DEVICE = {"uuid": "GPU-1", "index": "0", "replicas": 2, "held": 1, "healthy": False, "problem": FORGED}
ANSWER: dict[str, Any] = {
    "released": None,
    "closed": False,
    "problem": "",
    "notes": [FORGED],
    "pods": [{"namespace": "a", "pod": "b", "container": "c", "resource": "d", "devices": ["GPU-1::1"]}],
    "resources": [
        {
            "name": "nvidia.com/gpu",
            "registered": True,
            "devices": [{**DEVICE, "reasons": [{"kind": "xid", "text": "XID 79", "since": 1.0}]}],
            "allocated": [{"at": 1.0, "devices": ["GPU-1::1"]}],
        }
    ],
}


@contextlib.contextmanager
def answering(folder: Path, data: bytes) -> Iterator[None]:
    """A plugin that answers one question."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / plugin_socket.SOCKET))
        server.listen()

        def serve() -> None:
            client = server.accept()[0]
            with client:
                client.recv(4096)
                client.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(5)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> Result:
    monkeypatch.setattr(system, "state_dir", lambda: str(folder))
    return apart().invoke(main, ["device-plugin", *words])


def test_the_table_has_what_counts_and_nothing_that_speaks_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(tmp_path, json.dumps(ANSWER).encode() + b"\n"):
        done = run(monkeypatch, tmp_path, "status")
    assert done.exit_code == 0
    assert all(word in done.stdout for word in ("unhealthy", "1970-01-01", "GPU-1::1", "nvidia.com/gpu"))
    assert not {"\x1b", "\u202e"} & {*done.stdout, *done.stderr}
    assert not any(line.startswith("ok all") for line in done.stdout.splitlines())


@pytest.mark.parametrize(("more", "said"), [({}, "at kubelet\n"), ({"kubelet_dir": "/k"}, "at kubelet in /k\n")])
def test_nothing_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any, said: str) -> None:
    with answering(tmp_path, json.dumps({**ANSWER, "resources": [], **more}).encode()):
        assert f"nothing is registered {said}" in run(monkeypatch, tmp_path, "status").stdout


def test_since_when_a_device_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [{**DEVICE, "problem": "waits for the end of pod a/b", "reasons": [], "since": 86400.0}]
    resources = [{**ANSWER["resources"][0], "devices": devices}]
    with answering(tmp_path, json.dumps({**ANSWER, "resources": resources}).encode()):
        assert "1970-01-02" in run(monkeypatch, tmp_path, "status").stdout


def test_what_settings_and_snapshot_both_say_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "the settings stay as they were: x is wrong"
    with answering(tmp_path, json.dumps({**ANSWER, "notes": [note], "problem": "x is wrong"}).encode()):
        said = run(monkeypatch, tmp_path, "status").stderr
    assert said.count("x is wrong") == 1


def test_release_names_the_pods_that_hold_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(tmp_path, json.dumps(ANSWER).encode() + b"\n"):
        said = run(monkeypatch, tmp_path, "release").stdout
    assert "These pods still hold GPUs:" in said
    assert "GPU-1::1" in said


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b'{"error": "not now"}\n', "not now"),
        (b"", "is not gpushim-device-plugin"),
        (b"[]\n", "is not gpushim-device-plugin"),
        (b"\xff\x1b[2J\n", "is not gpushim-device-plugin"),
    ],
)
def test_what_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, sentence: str) -> None:
    with answering(tmp_path, data):
        done = run(monkeypatch, tmp_path, "take")
    assert done.exit_code == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


CLAIM = {**dict.fromkeys(("namespace", "pod", "container", "driver", "device"), "x"), "name": "mine"}
BY_CLAIMS = json.dumps({"fronts": ["dra"], "pods": [], "claims": [CLAIM]}).encode() + b"\n"


@pytest.mark.parametrize("do", ["release", "take"])
def test_claims_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: str) -> None:
    with answering(tmp_path, BY_CLAIMS):
        done = run(monkeypatch, tmp_path, do)
    assert done.exit_code == 0
    assert done.stdout.count("claim mine of x") == (do == "release")


def test_claims_alone_have_no_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is advised to start a device plugin that is not to run."""
    with answering(tmp_path, BY_CLAIMS):
        done = run(monkeypatch, tmp_path, "status")
    assert (done.exit_code, "systemctl start" in done.stderr, "by claims" in done.stderr) == (1, False, True)
    assert "see gpushim ps and gpushim-dra-driver --check" in done.stderr


@pytest.mark.parametrize("do", ["release", "take"])
def test_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: str) -> None:
    assert "no gpushim-device-plugin listens" in run(monkeypatch, tmp_path, do).stderr


def test_no_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, tmp_path / "none", "status")
    assert (done.exit_code, "no gpushim-device-plugin listens" in done.stderr) == (1, True)
