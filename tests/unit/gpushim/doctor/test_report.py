"""The file for a bug report: what is in it, and what is not."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from gpushim.doctor import report, warning
from gpushim.ground.errors import GpushimError
from unit.gpushim.doctor.patient import Patient

SECRETS = [
    "password=hunter2",
    'password: "hunter2 and more hunter2"',
    '{"token": "hunter2"}',
    '{\\"api_key\\": \\"hunter2\\"}',
    "Authorization: Bearer hunter2",
    "https://user:hunter2@registry.example/x",
    "proxy http://hunter2@host",
    "eyJhunter2.hunter2.hunter2",
    "ghp_hunter2",
    "AWS_SECRET_ACCESS_KEY=hunter2",
    "DB_URL=hunter2 with hunter2",
    "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
    "/home/hunter2/.docker/config.json",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_left_out(secret: str) -> None:
    cleaned = report.clean(f"before {secret}")
    assert cleaned.startswith("before ")
    assert "hunter2" not in cleaned


@pytest.mark.parametrize(
    "words",
    [
        "NVIDIA_VISIBLE_DEVICES=all",
        "GPU-5f1c1de2-0123-4567-89ab-cdef01234567",
        "/dev/nvidia0 is 195:7, but the kernel has 508:0 for it",
        "library path /usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01",
    ],
)
def test_what_helps_stays(words: str) -> None:
    assert report.clean(words) == words


def test_the_hosts_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "gpu17.example.org")
    assert report.clean("gpu17: gpu17.example.org, gpu170") == "HOST: HOST, gpu170"


@pytest.mark.parametrize("name", ["report.txt", "report.json"])
def test_a_report(patient: Patient, name: str) -> None:
    patient.write("var/log/gpushim.log", '{"container": "c0ffee", "request": "env", "x": "MY_TOKEN=hunter2"}\n')
    patient.write("etc/docker/daemon.json", '{"registry-mirrors": ["https://u:hunter2@mirror.example"]}')
    patient.host.engines[0].environ["HTTP_PROXY"] = "http://u:hunter2@proxy.example"
    path = patient.folder / name
    report.write(str(path), patient.host, [warning("evidence of MY_TOKEN=hunter2", "the fix")])
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in text
    for needle in ("c0ffee", "the fix", "535.183.01", "bookworm", patient.gpus.gpus[0].uuid, "podman version 5.4.2"):
        assert needle in text, needle


def test_json_is_json(patient: Patient) -> None:
    path = patient.folder / "report.json"
    report.write(str(path), patient.host, [])
    sections = json.loads(path.read_text())
    assert sections["snapshot"]["driver"]["version"] == "535.183.01"
    assert [each["name"] for each in sections["engines"]] == ["dockerd", "containerd"]


def test_nothing_is_overwritten(patient: Patient, tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GpushimError, match="is there already"):
        report.write(str(path), patient.host, [])
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is another user's")
def test_a_directory_link_of_somebody_elses_is_not_followed(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "place").symlink_to(tmp_path / "victim")
    os.chown(tmp_path / "place", 1000, 1000, follow_symlinks=False)
    with pytest.raises(GpushimError, match=r"is not touched: .*/place belongs to user 1000"):
        report.write(f"{tmp_path}/place/report", patient.host, [])
    assert [*(tmp_path / "victim").iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is another user's")
@pytest.mark.parametrize(("owner", "mode"), [(0, 0o1777), (1000, 0o700)])
def test_a_report_goes_into_directories_of_others(patient: Patient, tmp_path: Path, owner: int, mode: int) -> None:
    """As with sudo, in one's own home."""
    tmp_path.chmod(mode)
    os.chown(tmp_path, owner, owner)
    report.write(f"{tmp_path}/report", patient.host, [])
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o600


def test_a_long_word_in_the_log_takes_no_time() -> None:
    assert len(report.clean("a" * report.LOG_LIMIT)) == report.LOG_LIMIT
