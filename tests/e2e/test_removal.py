"""The package is removed while containers run: real engines, and dpkg's own scripts; for CRI-O their functions alone.

Engines call the runtime that they have recorded for exec, kill and delete; what stays under its path hands these on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, cri, crio, packages, trees
from e2e.installed import PODMAN, Machine
from e2e.leftovers import until
from e2e.packages import MAIN
from e2e.podman import store
from fakehost import Host
from gpushim import __version__
from sample import turn

SUITE = "trixie"
FUNCTIONS = (trees.TOP / "packaging/deb/debian/stub.sh").read_text()
STUB = "/usr/bin/gpushim-runtime"
PLACES = "/usr/lib/gpushim-removed /etc/systemd/system/gpushim-removed.service"
TOP = "/usr/lib/gpushim-removed"
NOTED = f"{TOP}/containers"
ASKS = "--env=NVIDIA_VISIBLE_DEVICES=0"
HEALTHY = "--health-cmd=true --health-interval=1s --health-retries=1"
RUN = "docker run --detach --network=none --runtime=gpushim"
RUN_SLEEP = "debian:local sleep 1000"
IMAGE = "localhost/debian:local"
SLEEP = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]
SECONDS = 20.0
SOON = "f=$(ls /usr/lib/gpushim/*/removed) && grep -q _moment=10 $f && sed -i s/_moment=10/_moment=2/ $f"
MOMENTS = "grep -las '[d]elete' /proc/[0-9]*/cmdline"  # which the stub waits after a delete
# The low-level runtime says whom a look finds when it is called to create.
SEEN = """#!/bin/sh
DPKG_ROOT=
{functions}
case " $* " in *" create "*) recorded gpushim-runtime >>/root/seen ;; esac
exec {low} "$@"
"""
# In the place of a moment, or after it.
WAIT = r"""\&\& { : >"$_top/$_id.waits"; read -r _ <"$_top/$_id" || true; } \&\&"""
# A file system where no file can be made, with what was there.
SMALL = "cp -a {top} /root/kept; mount -t tmpfs -o mode=755,nr_inodes=30 full {top}; cp -a /root/kept/. {top}"
FILL = "while true 2>/dev/null >{top}/more$((n += 1)); do :; done; ! true 2>/dev/null >{top}/containers/more"
# What a package does, for a Debian that has none: before its files go, and then.
REMOVAL = (
    f"DPKG_ROOT=\n{FUNCTIONS}\nkeep_stub gpushim-runtime /usr/lib/gpushim/{__version__}",
    f"DPKG_ROOT=\n{FUNCTIONS}\nrm -r /usr/bin/gpushim* /usr/lib/gpushim; link_stub gpushim-runtime",
)
# How each of the others runs, calls, ends and starts a container by its name.
OTHERS = {
    "ctr": (
        f"ctr run --detach --env {{}} --runc-binary={STUB} docker.io/library/debian:local {{}} sleep 1000",
        "ctr tasks exec --exec-id=$(date +%s%N) {} cat /proc/1/comm",
        "ctr tasks delete --force {}",
        "ctr tasks start --detach {}",
    ),
    "podman": (
        f"podman --runtime={STUB} run --detach --network=none --pids-limit=0 --env={{}} --name={{}} "
        "localhost/debian:local sleep 1000",
        f"podman --runtime={STUB} exec {{}} cat /proc/1/comm",
        f"podman --runtime={STUB} stop --time=0 {{}}",
        f"podman --runtime={STUB} start {{}}",
    ),
}


HALF = pytest.mark.skipif(not turn(2), reason="five seconds, with every second commit; GPUSHIM_LONG=1")


@pytest.fixture(scope="module")
def engine(debian_tree: Path, debian_image: Path) -> Iterator[Machine]:
    with packages.machine(SUITE, debian_tree) as there:
        install(there)
        there.run("gpushim configure docker --runtime-name=gpushim")
        there.write("/etc/containers/containers.conf", PODMAN)
        there.restart("docker")
        there.run(f"docker load --input={debian_image}")
        yield there


@pytest.fixture
def there(engine: Machine) -> Iterator[Machine]:
    """A machine with gpushim from its package, and a dockerd that has it as a runtime."""
    if engine.run(f"dpkg-query --show {MAIN}", check=False).returncode:
        install(engine)
    yield engine
    engine.run("docker ps --all --quiet | xargs --no-run-if-empty docker rm --force", check=False)
    engine.run(f"dpkg --purge {MAIN}; rm -rf {STUB} {PLACES}", check=False)


def install(there: Machine) -> None:
    packages.install(there, built.packages("deb")[MAIN])
    there.run(SOON)
    packages.settle(there)
    there.run("gpushim refresh")


def gone(there: Machine) -> bool:
    return there.run(f"ls -d {STUB} {PLACES}", check=False).stdout == ""


def passed(there: Machine) -> bool:
    """Whether each moment has ended, or does soon."""
    return until(lambda: not there.run(MOMENTS, check=False).stdout, SECONDS)


def health(there: Machine) -> list[str]:
    form = "{{.State.Health.Status}} {{len .State.Health.Log}}"
    return there.run(f"docker inspect --format '{form}' gpu").stdout.split()


def test_running_containers_go_on_until_they_end(there: Machine) -> None:
    """Exec, healthchecks, restart, stop and start, with a second container that keeps the stub; then it goes."""
    there.run(f"{RUN} --name=gpu {ASKS} {HEALTHY} {RUN_SLEEP}")
    there.run(f"for name in plain other old; do {RUN} --name=$name {RUN_SLEEP}; done; docker stop --time=0 old")
    done = there.run(f"apt-get remove --yes {MAIN}")
    assert f"{STUB} stays for containers that run" in done.stdout
    assert there.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"
    before = int(health(there)[1])
    assert until(lambda: health(there)[0] == "healthy" and int(health(there)[1]) >= min(before + 2, 5), SECONDS)
    refused = there.run("docker restart --time=0 gpu", check=False)
    assert "gpushim was removed, and this container may ask for a GPU" in refused.stderr
    there.run("docker restart --time=0 plain")
    assert there.run("docker exec plain echo here").stdout == "here\n"
    there.run(f"docker run --rm --network=none --runtime=gpushim {ASKS.replace('=0', '=void')} debian:local true")
    assert there.run(f"test -x {STUB}; apt-get purge --yes {MAIN}").stdout.count(f"{STUB} stays for containers") == 1
    there.run(
        f"docker stop --time=0 other; test -x {STUB}; docker restart --time=0 plain; docker stop --time=0 plain"
    )
    assert until(lambda: gone(there), SECONDS)
    missed = there.run("docker start plain", check=False)
    assert missed.returncode
    assert "gpushim-runtime" in missed.stderr


def test_others_containers_go_on_too(there: Machine, debian_image: Path) -> None:
    """Those of ctr and Podman; the last ends and starts again within the moment that the stub stays for it."""
    there.restart("containerd")
    there.run(f"ctr images import {debian_image}; podman load --input={debian_image}")
    for tool, (run, *_) in OTHERS.items():
        there.run(run.format("NVIDIA_VISIBLE_DEVICES=0", f"{tool}-gpu"))
        there.run(run.format("NVIDIA_VISIBLE_DEVICES=void", f"{tool}-plain"))
    there.run(f"apt-get remove --yes {MAIN}")
    there.write("/root/low", SEEN.format(functions=FUNCTIONS, low=there.run(f"cat {TOP}/low").stdout.strip()))
    there.run(f"chmod 755 /root/low; echo /root/low >{TOP}/low")
    ids = there.run("podman ps --quiet --no-trunc").stdout.split()
    assert there.run(f"ls {NOTED}").stdout.split() == sorted(["ctr-gpu", "ctr-plain", *ids])
    for tool, (_, call, end, start) in OTHERS.items():
        for name in (f"{tool}-gpu", f"{tool}-plain"):
            assert there.run(call.format(name)).stdout == "sleep\n"
        there.run(end.format(f"{tool}-gpu"))
        refused = there.run(start.format(f"{tool}-gpu"), check=False)
        assert "gpushim was removed, and this container may ask for a GPU" in refused.stderr
    for tool, (_, call, end, start) in OTHERS.items():
        plain = f"{tool}-plain"
        there.run(f"{end.format(plain)} && {start.format(plain)} && {call.format(plain)}")
    seen = there.run("cat /root/seen").stdout.split()
    assert {"ctr-plain", *there.run("podman ps --quiet --no-trunc").stdout.split()} <= {*seen}
    for tool, (_, _, end, _) in OTHERS.items():
        assert not gone(there)
        there.run(end.format(f"{tool}-plain"))
    assert until(lambda: gone(there), SECONDS)
    for tool, (*_, start) in OTHERS.items():
        missed = there.run(start.format(f"{tool}-plain"), check=False)
        assert (missed.returncode != 0, "gpushim-runtime" in missed.stderr) == (True, True)
    there.stop("containerd")


@pytest.mark.parametrize("place", ['/bin/sleep "$_moment"', "mine"])
def test_each_that_ends_has_a_moment_of_its_own(there: Machine, place: str) -> None:
    """Here each ends when it is said to; or it has, and looks when it is said to."""
    one, other = (there.run(f"{RUN} {RUN_SLEEP}").stdout.strip() for _ in range(2))
    there.run(f"apt-get remove --yes {MAIN}; cd {TOP}; mkfifo {one} {other}")
    there.write("/root/wait", f"s#{place} &&#{'true' if '/' in place else place} {WAIT}#")
    there.run(f"sed -i -f /root/wait {TOP}/runtime; docker rm --force {one}")
    assert until(lambda: there.run(f"ls {TOP}/{one}.waits", check=False).stdout != "", SECONDS)
    there.run(f"docker rm --force {other}; echo >{TOP}/{one}")
    assert until(lambda: not there.run(MOMENTS.replace("[d]elete", f"[d]elete.*{one}"), check=False).stdout, SECONDS)
    assert not gone(there)
    there.run(f"echo >{TOP}/{other}")
    assert until(lambda: gone(there), SECONDS)


@pytest.mark.parametrize("early", [True, False])
def test_one_that_begins_while_the_files_go_keeps_it(there: Machine, early: bool) -> None:
    """And what ends then does not."""
    during = f"docker rm --force early || true; {RUN} --name=late {RUN_SLEEP}"
    there.run(f"sed -i '/^  keep_stub /a {during}' /var/lib/dpkg/info/{MAIN}.prerm")
    there.run(f"{RUN} --name=early {RUN_SLEEP}" if early else "true")
    assert f"{STUB} stays for containers that run" in there.run(f"apt-get remove --yes {MAIN}").stdout
    there.run("docker restart --time=0 late && docker exec late true && docker rm --force late")
    assert until(lambda: gone(there), SECONDS)


@HALF
def test_where_no_file_can_be_made_it_stays_for_those_that_run(there: Machine) -> None:
    there.run(f"for name in one other; do {RUN} --name=$name {RUN_SLEEP}; done; apt-get remove --yes {MAIN}")
    there.run(SMALL.format(top=TOP))
    try:
        there.run(f"docker stop --time=0 one; {FILL.format(top=TOP)} && docker start one && docker rm --force other")
        assert passed(there)
        there.run("docker exec one true && docker rm --force one")
        assert until(lambda: there.run(f"ls {STUB} {NOTED}", check=False).stdout == "", SECONDS)
    finally:
        there.run(f"umount {TOP}")


@HALF
def test_calls_of_no_engine_neither_keep_it_nor_take_it_away(there: Machine) -> None:
    """A delete where the container is not, a run, which deletes by itself, and a create that fails."""
    gpu = there.run(f"{RUN} --name=gpu {RUN_SLEEP}; apt-get remove --yes {MAIN} >&2").stdout.strip()
    there.run(f"{STUB} --root=/run/elsewhere delete --force {gpu}")
    assert passed(there)
    there.run("docker exec gpu true")
    bundle = packages.bundle(there)
    bundle.ask(args=["/bin/true"])
    bundle.run()
    bundle.ask(args=["/bin/true"], root={"path": "/nowhere"})
    assert "/nowhere" in bundle.call("create", "--bundle", str(bundle.directory), "x", check=False).stderr
    there.run("mkdir -p /run/lock/x; chmod 1777 /run/lock; docker rm --force gpu")  # as anybody may
    assert until(lambda: gone(there), SECONDS)


@HALF
def test_a_unit_that_ends_kills_no_moment(there: Machine, debian_image: Path) -> None:
    """As Podman's with its container."""
    run, _, end, _ = OTHERS["podman"]
    there.run(f"podman load --input={debian_image}; {run.format('A=B', 'gpu')}; apt-get remove --yes {MAIN}")
    unit = f"/sys/fs/cgroup/systemd/{there.state.name}/unit"
    pids = "$(grep -ls conmon /proc/[0-9]*/comm | grep -o '[0-9]*') $$"
    enter = f"for pid in {pids}; do echo $pid >{unit}/cgroup.procs; done"
    there.run(f"mkdir -p {unit} && {enter} && {end.format('gpu')}")
    there.run(f"for pid in $(cat {unit}/cgroup.procs); do kill -KILL $pid; done")
    assert until(lambda: gone(there), SECONDS)
    there.run(f"rmdir {unit}")


def test_cri_o_s_containers_go_on_too(
    gpu_host: Host, podman_images: Path, busybox_tree: Path, tmp_path: Path
) -> None:
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    subprocess.run([trees.TOP / "packaging/install", tmp_path, "main", trees.TOP / "vendor"], check=True)
    subprocess.run(["/bin/sh", "-ec", SOON.replace("/usr", f"{tmp_path}/usr")], check=True)
    with crio.entered(gpu_host, [podman_images, store(tmp_path / "images", pause)], "v2") as there:
        there.sh("rm /usr/bin/gpushim*; cp -r $1/usr/. /usr; gpushim refresh", str(tmp_path))
        there.hands_over(there.sh("gpushim configure crio").stderr)
        with there.running():
            with there.cri() as client:
                pod = client.run_pod("nvidia")
                there.sh(REMOVAL[0])
                gpu = client.create(pod, IMAGE, SLEEP, env={"NVIDIA_VISIBLE_DEVICES": "0"})
                client.start(gpu)
                there.sh(REMOVAL[1])
                assert there.sh(f"ls {NOTED}").stdout == f"{gpu}\n"  # none is its pod's own
                assert client.execute(gpu, "ls", "/dev/nvidiactl") == "/dev/nvidiactl\n"
                with pytest.raises(cri.RefusedError, match="removed, and this container may ask for a GPU"):
                    client.create(pod, IMAGE, SLEEP, env={"NVIDIA_VISIBLE_DEVICES": "0"})
                ended, void = client.run_pod("nvidia"), {"NVIDIA_VISIBLE_DEVICES": "void"}
                client.start(short := client.create(ended, IMAGE, ["/bin/true"], env=void))
                client.output(short)
                client.remove_pod(pod)
                assert until(lambda: not there.sh(MOMENTS, check=False).stdout, SECONDS)
                client.remove_pod(ended)  # CRI-O deletes the container now
            assert until(lambda: not there.sh(f"ls -d {STUB} {PLACES}", check=False).stdout, SECONDS)


def test_installed_again_it_takes_the_stub_s_place(there: Machine) -> None:
    there.run(f"{RUN} --name=gpu {ASKS} {RUN_SLEEP}; apt-get remove --yes {MAIN}")
    assert there.run(f"readlink {STUB}").stdout == "/usr/lib/gpushim-removed/runtime\n"
    install(there)
    assert there.run(f"ls -d {PLACES}", check=False).stdout == ""
    there.run("docker restart --time=0 gpu")
    assert there.run("docker exec gpu ls /dev/nvidiactl").stdout == "/dev/nvidiactl\n"


def test_the_next_boot_takes_it_away(there: Machine) -> None:
    """By its unit, or by the first container where there is no systemd; a boot is told by its id."""
    there.run(
        f"{RUN} --name=gpu {ASKS} {RUN_SLEEP}; apt-get remove --yes {MAIN}; cp -a /usr/lib/gpushim-removed /kept"
    )
    unit = there.run("sed -n 's/^ExecStart=//p' /etc/systemd/system/gpushim-removed.service").stdout.strip()
    there.run(f"{unit}; test -x {STUB}")  # not in the boot of those containers
    there.run(f"echo another >/usr/lib/gpushim-removed/boot; {unit}")
    assert there.run(f"ls -d {STUB} {PLACES}", check=False).stdout == ""
    there.run(f"cp -a /kept /usr/lib/gpushim-removed; ln -s /usr/lib/gpushim-removed/runtime {STUB}")
    there.run("echo another >/usr/lib/gpushim-removed/boot")
    done = there.run(f"{STUB} create --bundle /nowhere x", check=False)
    assert (done.returncode, "until the last boot" in done.stderr) == (127, True)
    assert there.run(f"ls -d {STUB} {PLACES}", check=False).stdout == ""
    there.run(f"cp -a /kept /usr/lib/gpushim-removed; ln -s /usr/lib/gpushim-removed/runtime {STUB}")  # for its end
