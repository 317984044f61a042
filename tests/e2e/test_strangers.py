"""Processes that only call themselves engines: root executes nothing of theirs, and writes nowhere where they say.

Each was an attack that made nobody, or a container with the host's PID namespace, the host's root.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from e2e import built, packages
from e2e.engines import run
from e2e.hostile_places import Place
from e2e.strangers import NOBODY, Stage, image, pivoted, running, stage

# What an administrator calls.
LOOKING = [("doctor",), ("ps",), ("info",), ("migrate",)]
CHANGING = {
    "dockerd": [("configure", "docker", "--remove"), ("configure", "docker")],
    "containerd": [("configure", "containerd", "--remove"), ("configure", "containerd")],
}


def call_all(found: Stage, name: str) -> None:
    """Call what looks at all engines, and what changes the settings of this one."""
    for words in (*LOOKING, *CHANGING[name]):
        said = found.gpushim(*words)
        assert "Traceback" not in said.stderr, said.stderr
        assert found.gone() == [], words


# Its command line, and the name of its program.
USERS = {
    "renamed": (("dockerd",), "dockerd"),
    "renamed, with settings": (("containerd", "--config={folder}/config.toml"), "containerd"),
    "by its first argument": (("/usr/bin/containerd",), "program"),
    "by its first argument, with settings": (("/usr/bin/dockerd", "--config-file={folder}/daemon.json"), "program"),
}


@pytest.mark.parametrize("name", USERS)
def test_a_process_of_nobodys(place: Place, name: str) -> None:
    argv, program = USERS[name]
    with stage(place) as found:
        if program != "program":
            shutil.copy(found.program, found.folder / program)
        words = [word.format(folder=found.folder) for word in argv]
        with found.user(*words, program=found.folder / program):
            call_all(found, argv[0].rpartition("/")[2])


@pytest.mark.parametrize("name", ["dockerd", "containerd"])
@pytest.mark.parametrize("way", ["podman, user 1000", "podman, root", "pivot_root"])
def test_a_container_with_the_hosts_processes(place: Place, name: str, way: str) -> None:
    with stage(place) as found:
        root = image(found, name)
        option = "--config-file" if name == "dockerd" else "--config"
        (root / "etc/settings").write_text("")
        with contained(found, way, f"/usr/bin/{name}", f"{option}=/etc/settings", rootfs=root):
            call_all(found, name)
            assert (root / "etc/settings").read_text() == ""


@pytest.mark.parametrize("way", ["podman, root", "pivot_root"])
def test_settings_behind_a_containers_link(place: Place, way: str) -> None:
    """The link is absolute: followed from here, it leads into a directory of the host's root."""
    with stage(place) as found:
        root = image(found, "dockerd")
        (root / "d").symlink_to(found.victim)
        with contained(found, way, "/usr/bin/dockerd", "--config-file=/d/x", rootfs=root):
            call_all(found, "dockerd")


def contained(found: Stage, way: str, *argv: str, rootfs: Path) -> contextlib.AbstractContextManager[None]:
    if way == "pivot_root":
        return found.rooted(*argv, rootfs=rootfs)
    return found.container(*argv, user=0 if way == "podman, root" else 1000, rootfs=rootfs)


def test_the_real_program_that_nobody_runs(place: Place) -> None:
    """It waits for its settings, which are a FIFO; root's own are found as if it were not there."""
    with stage(place) as found:
        os.mkfifo(found.folder / "fifo")
        with found.user("containerd", f"--config={found.folder}/fifo", program="/usr/bin/containerd"):
            done = found.gpushim("configure", "containerd", "--dry-run")
            assert "+++ /etc/containerd/config.toml" in done.stdout, done.stderr


def test_a_program_that_others_may_replace(place: Place) -> None:
    with stage(place) as found:
        program, settings = found.marker.parent / "dockerd", found.victim.parent / "daemon.json"
        shutil.copy(found.program, program)
        settings.write_text("{}")
        with found.root("dockerd", f"--config-file={settings}", program=program):
            said = found.gpushim("doctor", "docker").stdout
            found.gpushim("configure", "docker")
            assert settings.read_text() == "{}"
        assert "is ignored: others could have made its program" in said


@pytest.mark.parametrize("name", ["dockerd", "containerd"])
def test_a_setuid_program_that_bears_the_name(place: Place, name: str) -> None:
    """su waits for a password: its effective user is root, its real one is not."""
    with stage(place) as found:
        (found.folder / "link").symlink_to(found.victim)
        option = "--config-file" if name == "dockerd" else "--config"
        with found.user(name, "root", "-c", f"{option}={found.folder}/link/x", program="/usr/bin/su"):
            call_all(found, name)


SETTINGS: dict[str, Callable[[Stage], Path]] = {
    "missing, in a directory of the stranger's": lambda found: found.folder / "x.json",
    "missing, in a world-writable directory": lambda found: found.marker.parent / "x.json",
    "behind the stranger's link": lambda found: link(found, found.victim) / "x.json",
    "a link itself": lambda found: link(found, found.victim / "x.json"),
}


def link(found: Stage, target: Path) -> Path:
    path = found.folder / "link"
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio", "podman"])
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_where_a_stranger_may_write(place: Place, name: str, engine: str) -> None:
    with stage(place) as found:
        path = SETTINGS[name](found)
        done = found.gpushim("configure", engine, f"--config={path}")
        assert done.returncode == 1
        assert "is not touched: " in done.stderr, done.stderr
        assert not [*found.victim.iterdir(), *found.folder.glob("*.json"), *found.marker.parent.glob("*.json")]


PROGRAMS = ("podman", "docker", "dockerd", "systemctl", "kubectl", "ctr", "crictl", "containerd", "crio")
EXECUTING = [("doctor", "podman"), ("configure", "podman", "--verify"), ("configure", "crio", "--verify")]
EXECUTING += [("configure", "containerd", "--verify"), ("explain", "--docker", "web"), ("ps",)]


@pytest.mark.parametrize("where", ["a stranger's, first on PATH", "/usr/local/sbin, with a group that may write"])
def test_programs_that_others_could_have_put_there(place: Place, where: str) -> None:
    with stage(place) as found:
        for name in PROGRAMS:
            shutil.copy(found.program, found.folder / name)
        if where.startswith("/"):
            os.chown(found.folder, 0, NOBODY)
            found.folder.chmod(0o775)
            run([*found.prefix, "/usr/bin/mount", "--bind", str(found.folder), where.partition(",")[0]])
        else:
            path = f"{found.folder}:/usr/sbin:/usr/bin:/sbin:/bin"
            found = replace(found, place=replace(place, env={**place.env, "PATH": path}))
        for words in EXECUTING:
            said = found.gpushim(*words)
            assert "Traceback" not in said.stderr, said.stderr
            assert found.gone() == [], words


def test_a_socket_of_a_strangers(place: Place) -> None:
    """An engine of root's may have its socket where a user could put another; nobody asks there."""
    with stage(place) as found, socket.socket(socket.AF_UNIX) as server:
        path = found.folder / "docker.sock"
        server.bind(str(path))
        server.listen()
        os.chown(path, NOBODY, NOBODY)
        settings = found.victim.parent / "daemon.json"
        settings.write_text(f'{{"hosts": ["unix://{path}"]}}')
        found.gpushim("configure", "docker", f"--config={settings}", "--verify")
        assert select.select([server], [], [], 0)[0] == []


def test_what_others_write_on_a_terminal(place: Place, tmp_path: Path) -> None:
    """A variable of an image that would change the terminal's title, turn the line round, and add one."""
    process = {"env": ["NVIDIA_VISIBLE_DEVICES=0\x1b]0;x\x07\x9b2J\u202e\nok   all is well"]}
    (tmp_path / "config.json").write_text(json.dumps({"ociVersion": "1.0.2", "process": process}))
    done = run([str(place.top / "bin/gpushim"), "explain", str(tmp_path)], check=False, env=place.env)
    said = done.stdout + done.stderr
    assert "NVIDIA_VISIBLE_DEVICES" in said
    assert all(each.isprintable() for each in said.replace("\n", "")), said
    assert "\nok " not in said


def test_maintainer_scripts_look_at_files_only(debian_tree: Path) -> None:
    """With a process of root's in a root of its own, as a container's is."""
    with packages.machine("trixie", debian_tree) as there:
        packages.install(there, built.packages("deb")["gpushim"])
        mark, root = there.state / "marks" / "marker", there.state / "rootfs"
        for top in (mark.parent, Path(f"{root}{mark.parent}"), root / "usr/bin", root / "etc"):
            top.mkdir(parents=True)
        source = Path(__file__).with_name("stranger.c")
        command = ["/usr/bin/gcc", "-static", f'-DMARKER="{mark}"', "-o", f"{root}/usr/bin/containerd", str(source)]
        subprocess.run(command, check=True)
        argv = ("/usr/bin/containerd",)
        with running([*there.prefix, *pivoted(root), *argv], argv):
            there.run("GPUSHIM_UNCONFIGURE=1 apt-get remove --yes gpushim")
        assert not [path for path in (mark, Path(f"{root}{mark}")) if path.exists()]
