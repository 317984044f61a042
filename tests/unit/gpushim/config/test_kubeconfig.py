"""What is taken of a kubeconfig, what is refused, and when it is read again."""

from __future__ import annotations

import copy
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.cluster.access import RelayedAccess
from gpuplugin.cluster.cluster import Api
from gpushim.config.kubeconfig import Kubeconfig
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.cluster.apiserver import ApiServer, certify
from unit.gpushim.config.kubeconfigs import CA, SERVER, kubeconfig


def written(folder: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None, **more: Any) -> str:
    """Write one, and return its path."""
    (folder / "config").write_text(json.dumps({**kubeconfig(user, cluster), **more}))
    return str(folder / "config")


def test_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text("both")
    user = {"client-certificate": "pem", "client-key": f"{tmp_path}/pem", "token": "t\n"}
    found = Kubeconfig().look(written(tmp_path, user, {"tls-server-name": "api"}))
    assert found == {
        "path": f"{tmp_path}/config",
        "server": SERVER["server"],
        "name": "api",
        "ca": CA,
        "cert": "both",
        "key": "both",
        "token": "t",
    }


@pytest.mark.parametrize("key", ["token", "client-certificate", "certificate-authority"])
def test_a_file_that_rotates_is_read_again(tmp_path: Path, key: str) -> None:
    (tmp_path / "a").write_text(f"first{CA if key == 'certificate-authority' else ''}")
    user = {"token": {"tokenFile": "a"}, "client-certificate": {key: "a", "client-key": "a"}}.get(key, {"token": "t"})
    cluster = {"certificate-authority-data": "", key: "a"} if key.endswith("authority") else {}
    path, config = written(tmp_path, user, cluster), Kubeconfig()
    first = copy.copy(config.look(path))
    assert config.look(path) == first
    (tmp_path / "b").write_text((tmp_path / "a").read_text().replace("first", "second"))
    (tmp_path / "b").rename(tmp_path / "a")
    assert first
    assert config.look(path) == {part: text.replace("first", "second") for part, text in first.items()} != first


REFUSED = {
    "exec": ({"exec": {"command": "x"}}, {}, "it has exec; server"),
    "a password": ({"token": "t", "username": "x"}, {}, "has username;"),
    "another's name": ({"token": "t", "as": "admin"}, {}, "has as;"),
    "no check": ({"token": "t"}, {"insecure-skip-tls-verify": True}, "has insecure-skip-tls-verify;"),
    "a proxy": ({"token": "t"}, {"proxy-url": "http://x"}, "has proxy-url;"),
    "no TLS": ({"token": "t"}, {"server": "http://localhost"}, "names no server with https"),
    "nothing": ({}, {}, "has neither a token nor a client-certificate"),
    "no key": ({"client-certificate": "config"}, {}, "has neither a token nor"),
    "no base64": (
        {"token": "t"},
        {"certificate-authority-data": "!"},
        "certificate-authority-data is no text in base64",
    ),
    "no certificate": (
        {"token": "t"},
        {"certificate-authority-data": "bm90IHBlbQ=="},
        "certificate-authority has no -----BEGIN",
    ),
    "an absent file": ({"tokenFile": "none"}, {}, "none cannot be read: No such file"),
    "two words": ({"token": "a\nb"}, {}, "its token is no word"),
    "no host": ({"token": "t"}, {"server": "https://["}, "config cannot be used: Invalid IPv6 URL"),
    "no port": ({"token": "t"}, {"server": "https://x:65536"}, "config cannot be used: Port out of range"),
    "no path": ({"tokenFile": "a\0b"}, {}, "config cannot be used: .*embedded null"),
}


@pytest.mark.parametrize(("user", "cluster", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], why: str) -> None:
    with pytest.raises(GpushimError, match=why) as refused:
        Kubeconfig().look(written(tmp_path, user, cluster))
    assert refused.value.exit_code == 15


@pytest.mark.parametrize("rows", ["contexts", "clusters", "users"])
def test_a_name_that_is_not_there(tmp_path: Path, rows: str) -> None:
    with pytest.raises(GpushimError, match=f"below {rows}"):
        Kubeconfig().look(written(tmp_path, {"token": "t"}, **{rows: None}))


def test_what_others_may_write_is_not_believed(tmp_path: Path) -> None:
    path = written(tmp_path, {"token": "t"})
    Path(path).chmod(0o666)
    with pytest.raises(GpushimError, match="cannot be trusted"):
        Kubeconfig().look(path)


def test_what_it_said_before_counts_until_it_is_right(tmp_path: Path) -> None:
    config = Kubeconfig()
    path = written(tmp_path, {"token": "t"})
    assert config.look(path)
    written(tmp_path, {"exec": {}}, contexts=[])
    for _ in range(2):
        with pytest.raises(GpushimError):
            config.look(path)
    written(tmp_path, {"token": "second"})
    assert (config.look(path) or {})["token"] == "second"
    assert config.look("") is None


def test_the_server_sees_the_client_certificate_and_another_one_when_it_has_changed(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: {}).running() as server:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            certify(tmp_path / name, "127.0.0.1")
        server.context.load_verify_locations(tmp_path / "one/crt")
        server.context.load_verify_locations(tmp_path / "two/crt")
        server.context.verify_mode = ssl.CERT_REQUIRED
        port = server.environment["KUBERNETES_SERVICE_PORT"]
        told = RelayedAccess(None)
        asking, ca = Api({}, access=told), (tmp_path / "crt").read_text()
        for name in ("one", "two"):
            said = {
                "server": f"https://127.0.0.1:{port}",
                "name": "",
                "path": "/k",
                "token": "",
                "ca": ca,
            }
            said.update(
                {part: (tmp_path / name / file).read_text() for part, file in (("cert", "crt"), ("key", "key"))}
            )
            told.take(said)
            asking.ask("GET", "/x", {})
        seen = [request.peer for request in server.asked]
    assert seen == [ssl.PEM_cert_to_DER_cert((tmp_path / name / "crt").read_text()) for name in ("one", "two")]
