"""An ordinary user's Docker, Debian's and the newest, by its own scripts: names in /run and /etc are links there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import chroots, programs, rootless, upstream
from e2e.expect import INSIDE, PROBE, probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.rootless import User

IMAGE, PLACE = "debian:local", f"/srv{INSIDE}"


@pytest.fixture(scope="module", params=["debian-v1", "newest-v1", "newest-v2"])
def user(request: pytest.FixtureRequest, debian_image: Path) -> Iterator[User]:
    engine, view = request.param.split("-")
    lower = str(chroots.tree("rootless"))
    if engine == "newest":  # with the newest runc: Docker 29.8 asks for a time namespace
        lower = f"{upstream.lower(upstream.DOCKER, upstream.ROOTLESS)}:{lower}"
    with rootless.user(view=view, lower=lower) as found, rootless.docker(found):
        # By root, who may read it.
        found.machine.run(f"docker --host=unix://{rootless.RUN}/docker.sock load --input={debian_image}")
        found.machine.write(PLACE, PROBE.read_text())
        yield found


def look(user: User, indices: list[int], options: str, *, check: bool = True) -> str:
    """Run a container that looks for the host's GPUs; returns its report, or why there is none."""
    common = f"--rm --network=none --volume={PLACE}:{INSIDE}:ro"
    done = user.run(f"docker run {common} {options} {IMAGE} python3 {INSIDE}", check=check)
    if done.returncode:
        return done.stderr
    _, _, *others = probe(user.machine.host, indices)
    return json.dumps({**json.loads(done.stdout), "made": dict.fromkeys(others, "EPERM")})  # nobody makes nodes there


def is_new(user: User) -> bool:
    """Return whether its --gpus goes by the CDI spec, which it finds through a link."""
    return int(user.run("docker version --format='{{.Server.Version}}'").stdout.partition(".")[0]) >= programs.OLDEST


def test_rootlesskit_makes_links(user: User) -> None:
    """Or nothing here shows anything."""
    said = user.run(
        "for name in run/gpushim run/cdi etc/gpushim; do readlink /proc/$(pgrep dockerd)/root/$name; done"
    )
    assert [line.split("/")[-1] for line in said.stdout.splitlines()] == ["gpushim", "cdi", "gpushim"]


def test_gpus_are_given_by_our_runtime(user: User) -> None:
    output = look(user, [0, 2], "--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=0,2")
    sees_exactly(output, user.machine.host, [0, 2])


def test_gpus_are_given_by_its_option(user: User) -> None:
    sees = sees_by_cdi if is_new(user) else sees_exactly
    sees(look(user, [0, 2], "--gpus='\"device=0,2\"'"), user.machine.host, [0, 2])


def test_no_gpu_is_seen_without_a_request(user: User) -> None:
    sees_nothing(look(user, [], "--runtime=nvidia"))


def test_docker_before_28_finds_no_spec_through_a_link(user: User) -> None:
    new = is_new(user)
    output = look(user, [1], "--device=nvidia.com/gpu=1", check=new)
    if new:
        sees_by_cdi(output, user.machine.host, [1])
    else:
        assert "unresolvable CDI devices" in output


def test_the_launcher_goes_by_the_state(user: User) -> None:
    """No Python starts for a call that concerns no GPU."""
    user.machine.run("chmod a-x /usr/bin/python3.1*")
    try:
        sees = user.run(f"docker run --rm --network=none --runtime=nvidia {IMAGE} true", check=False)
    finally:
        user.machine.run("chmod a+x /usr/bin/python3.1*")
    assert sees.returncode == 0, sees.stderr


def test_a_state_that_came_later_is_made_there_again(user: User) -> None:
    """The directory is replaced on the host: the link leads to the new one."""
    user.machine.run("rm -r /run/gpushim; gpushim refresh")
    sees_exactly(look(user, [1], "--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=1"), user.machine.host, [1])
