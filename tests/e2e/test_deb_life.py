"""The life of the Debian packages: upgrade, broken parts, other Pythons, removal, and NVIDIA's packages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, leftovers, packages, recorder
from e2e.built import OLD
from e2e.creates import ASKS, CREATES, SUITE, beside
from e2e.creates import there as there
from e2e.expect import sees_exactly, sees_nothing
from e2e.installed import Machine
from e2e.packages import COMPAT, MAIN
from sample import share

NEXT = "gpushim configure docker"  # what is to be done after an installation
# Older Pythons than the Debians here have: RHEL 9's and Amazon Linux 2023's, Ubuntu 22.04's.
PYTHONS = sorted(Path("/root/.pyenv/versions").glob("3.[9]*/bin/python3")) + sorted(
    Path("/root/.pyenv/versions").glob("3.10.*/bin/python3")
)
RUNS = """
made=0
while [ ! -e "$2" ]; do
    gpushim-runtime --root "$1/runs" run --bundle "$1" run$made
    made=$((made + 1))
    sleep 0.05
done
echo $made
"""


@pytest.fixture(scope="module")
def layer(debian_tree: Path) -> Iterator[Path]:
    """What a machine's files are more when gpushim has been installed: that takes apt seconds."""
    with leftovers.state() as kept, packages.machine(SUITE, debian_tree) as there:
        packages.install(there, built.packages("deb")[MAIN])
        yield packages.changed(there, kept)


@pytest.fixture
def installed(debian_tree: Path, layer: Path) -> Iterator[Machine]:
    """A machine with gpushim, which knows the GPUs."""
    with packages.machine(SUITE, debian_tree, layer) as there:
        packages.settle(there)
        there.run("gpushim refresh")
        yield there


@pytest.fixture(scope="module")
def standing(debian_tree: Path, layer: Path) -> Iterator[Machine]:
    """The same for tests that leave it as it was."""
    with packages.machine(SUITE, debian_tree, layer) as there:
        packages.settle(there)
        yield there


def test_no_create_fails_during_an_upgrade(there: Machine) -> None:
    """Creates under a stub, and whole containers under runc, while one version takes another's place."""
    old, new = built.packages("deb", OLD)[MAIN], built.packages("deb")[MAIN]
    packages.install(there, old)
    packages.settle(there)
    with beside(there, CREATES, stub=recorder.build(there.state)) as creates, beside(there, RUNS) as runs:
        there.run(f"dpkg --install {new}")
    assert creates[0] > 20
    assert runs[0] > 5
    assert there.run("ls /usr/lib/gpushim").stdout.split() == [built.version_here()]


def test_upgrade_keeps_the_configuration_and_its_comments(there: Machine) -> None:
    packages.install(there, built.packages("deb", OLD)[MAIN])
    packages.settle(there)
    before = there.run("cat /etc/gpushim/config.toml").stdout
    there.run("gpushim configure docker")
    done = packages.install(there, built.packages("deb")[MAIN])
    assert there.run("cat /etc/gpushim/config.toml").stdout == before
    assert "# mine\n" in before
    assert "no engine needs a restart: /etc/docker/daemon.json" in done.stdout
    assert NEXT not in done.stdout


def test_packages_of_two_versions_do_not_go_together_and_going_back_keeps_the_configuration(
    installed: Machine,
) -> None:
    old = built.packages("deb", OLD)
    before = installed.run("cat /etc/gpushim/config.toml").stdout
    done = packages.install(installed, old[COMPAT], check=False)
    assert done.returncode != 0
    assert f"Depends: gpushim (= {OLD}-1) but {built.version_here()}-1 is" in done.stdout + done.stderr
    packages.install(installed, old[MAIN])  # with apt's --allow-downgrades
    assert installed.run("ls /usr/lib/gpushim").stdout.split() == [OLD]
    assert installed.run("cat /etc/gpushim/config.toml").stdout == before
    sees_exactly(packages.bundle(installed).look(installed.host, [0, 2], ASKS), installed.host, [0, 2])


def test_without_a_gpu_nothing_fails(there: Machine) -> None:
    done = packages.install(there, *(built.packages("deb")[name] for name in (MAIN, COMPAT)))
    assert NEXT in done.stdout
    sees_nothing(packages.bundle(there).look(there.host, []))


def test_removal_leaves_the_configuration_and_a_running_container_alone(installed: Machine) -> None:
    installed.write("/etc/docker/daemon.json", '{"debug": false}')
    installed.run("gpushim configure docker")
    bundle = packages.bundle(installed)
    bundle.ask(ASKS, args=["/bin/sleep", "1000"])
    with bundle.created():
        bundle.call("start", bundle.id)
        done = installed.run(f"apt-get remove --yes {MAIN}")
        assert bundle.state() == "running"
        assert bundle.call("exec", bundle.id, "/bin/ls", "/dev/nvidia1").stdout == "/dev/nvidia1\n"
    assert "/etc/docker/daemon.json still names gpushim" in done.stdout
    assert "# mine" in installed.run("cat /etc/gpushim/config.toml").stdout
    assert installed.run("ls -d /run/gpushim /run/cdi /usr/lib/gpushim", check=False).stdout == ""


def test_removal_takes_engines_settings_back_if_asked(installed: Machine) -> None:
    mine = '{\n  "debug": false\n}\n'
    installed.write("/etc/docker/daemon.json", mine)
    installed.run("gpushim configure docker")
    done = installed.run(f"GPUSHIM_UNCONFIGURE=1 apt-get remove --yes {MAIN}")
    assert installed.run("cat /etc/docker/daemon.json").stdout == mine
    assert installed.run("ls /usr/local/bin").stdout == ""
    assert installed.run("ls /etc/docker").stdout.split() == ["daemon.json"]
    assert "has the old settings" in done.stdout + done.stderr


@pytest.mark.parametrize("words", ["remove", "purge"])
def test_removal_says_how_to_take_the_entries_out_by_hand(installed: Machine, words: str) -> None:
    """Without gpushim, which is gone, and with all that somebody has written since it was configured."""
    installed.write("/etc/docker/daemon.json", '{\n  "debug": false\n}\n')
    installed.run("gpushim configure docker; gpushim configure podman --set-as-default")
    installed.run("sed -i 's/false,/false, \"mtu\": 1400,/' /etc/docker/daemon.json")
    done = installed.run(f"apt-get {words} --yes {MAIN}")
    said = [line.partition("gpushim:   ")[2] for line in done.stdout.splitlines() if line.startswith("gpushim:   ")]
    end = " /etc/docker/daemon.json nvidia"
    assert [line for line in said if line.startswith("python3 -I -c ") and line.endswith(end)]
    assert "rm /etc/containers/containers.conf.d/99-gpushim.conf" in said
    installed.run("\n".join(said))
    assert installed.run("ls /usr/local/bin").stdout == ""
    left = json.loads(installed.run("cat /etc/docker/daemon.json").stdout)
    assert left == {"debug": False, "mtu": 1400, "runtimes": {}}
    assert installed.run("ls /etc/containers/containers.conf.d").stdout == ""


@pytest.mark.parametrize("asked", [True, False])
def test_purge_with_an_entry_of_nvidias_as_default(installed: Machine, asked: bool) -> None:
    """Its program goes with gpushim-nvidia-compat: what would break all containers is taken out, or how is said."""
    packages.install(installed, built.packages("deb")[COMPAT])
    theirs = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
    before = json.dumps({"default-runtime": "nvidia", "debug": False, "runtimes": theirs})
    installed.write("/etc/docker/daemon.json", before)
    done = installed.run(f"{'GPUSHIM_UNCONFIGURE=1 ' * asked}apt-get purge --yes {MAIN} {COMPAT}")
    if not asked:
        assert installed.run("cat /etc/docker/daemon.json").stdout == before
        mark = "gpushim-nvidia-compat:   "
        said = [line.partition(mark)[2] for line in done.stdout.splitlines() if line.startswith(mark)]
        installed.run("\n".join(said))
    left = json.loads(installed.run("cat /etc/docker/daemon.json").stdout)
    assert left == {"debug": False, **({} if asked else {"runtimes": {}})}
    copies = installed.run("cat /etc/docker/daemon.json.kept-gpushim", check=False).stdout
    assert copies == before


def test_purge_after_the_entries_are_out_takes_the_records(installed: Machine) -> None:
    installed.write("/etc/docker/daemon.json", "{}")
    installed.run("gpushim configure docker")
    installed.run(f"apt-get remove --yes {MAIN}")
    installed.run("cp /etc/docker/daemon.json.before-gpushim /etc/docker/daemon.json")
    assert "nvidia-cdi-hook" in installed.run("ls /usr/local/bin").stdout
    installed.run(f"apt-get purge --yes {MAIN}")
    assert installed.run("ls /usr/local/bin").stdout == ""
    assert installed.run("ls /etc/docker").stdout.split() == ["daemon.json"]


def test_removal_takes_the_spec_wherever_it_is(installed: Machine) -> None:
    """However its directory is written in config.toml."""
    folder = installed.state / "specs"
    line = f'output-directory = """\\\n{folder}""" # where engines look'
    installed.write("/tmp/line", line + "\n")
    installed.run("sed -i -e '/^# output-directory = /{r /tmp/line' -e 'd}' /etc/gpushim/config.toml")
    installed.run("gpushim refresh")
    assert [path.name for path in folder.iterdir()] == ["nvidia.com-gpu.json"]
    installed.run(f"apt-get remove --yes {MAIN}")
    assert [*folder.iterdir()] == []


def test_removal_leaves_a_spec_that_somebody_has_changed_where_no_engine_reads_it(installed: Machine) -> None:
    installed.run("gpushim refresh; sed -i 's/{/{ /' /run/cdi/nvidia.com-gpu.json")
    installed.run(f"apt-get remove --yes {MAIN}")
    assert installed.run("ls /run/cdi").stdout == "nvidia.com-gpu.json.kept-gpushim\n"


def test_broken_command_line_does_not_keep_the_package_on_the_machine(installed: Machine) -> None:
    installed.run("rm -r /usr/lib/gpushim/*/vendor")
    installed.run(f"apt-get purge --yes {MAIN}")
    assert installed.run("ls -d /etc/gpushim /usr/lib/gpushim /run/gpushim", check=False).stdout == ""


def test_create_works_where_the_command_line_is_broken(standing: Machine) -> None:
    standing.run(
        "mkdir /kept; mv /usr/lib/gpushim/*/vendor /usr/lib/python3/dist-packages/* /kept; rm -rf /run/gpushim"
    )
    refused = standing.run("gpushim list", check=False)
    report = packages.bundle(standing).look(standing.host, [0, 2], ASKS)
    standing.run("mv /kept/vendor /usr/lib/gpushim/*; mv /kept/* /usr/lib/python3/dist-packages")
    assert refused.returncode != 0
    assert refused.stderr.startswith("gpushim: click is missing")
    sees_exactly(report, standing.host, [0, 2])


def test_create_waits_for_files_that_an_upgrade_is_laying_down(standing: Machine) -> None:
    whole = f"/usr/lib/gpushim/{built.version_here()}/whole"
    bundle = packages.bundle(standing)
    standing.run(f"mv {whole} /whole; (sleep 1; mv /whole {whole}) </dev/null >/dev/null 2>&1 &")
    sees_exactly(bundle.look(standing.host, [0, 2], ASKS), standing.host, [0, 2])


def test_bundled_packages_come_before_those_of_the_distribution(standing: Machine) -> None:
    other = "/usr/lib/python3/dist-packages/click.py"
    standing.write(other, "raise ImportError('too old')")
    done = standing.run(f"gpushim --version; rm {other}")
    assert done.stdout == f"gpushim {built.version_here()}\n"


def test_new_python_is_compiled_for(standing: Machine) -> None:
    count = "find /usr/lib/gpushim -path '*/__pycache__/*' | wc -l"
    before = int(standing.run(count).stdout)
    standing.run("rm -r $(find /usr/lib/gpushim -name __pycache__)")
    standing.run("/usr/share/python3/runtime.d/gpushim.rtupdate rtupdate 3.12 3.13")
    assert int(standing.run(count).stdout) == before > 100


@pytest.mark.parametrize("python", share(PYTHONS, 2), ids=lambda path: path.parents[1].name)
def test_runs_on_older_pythons(python: Path, debian_tree: Path) -> None:
    """Listing GPUs, create and hook, in the place of the machine's own Python."""
    with packages.machine(packages.HERE, debian_tree) as there:
        packages.install(there, built.packages("deb")[MAIN])
        packages.settle(there)
        there.run(f"mount --bind {python.resolve()} /usr/bin/$(readlink /usr/bin/python3)")
        version = there.run("/usr/bin/python3 -c 'import sys; print(sys.version.split()[0])'").stdout.strip()
        assert version == python.parents[1].name
        sees_exactly(packages.bundle(there).look(there.host, [0, 2], ASKS), there.host, [0, 2])
        assert "GPU-" in there.run("gpushim list").stdout


def package(there: Machine, name: str, version: str, fields: str, *programs: str) -> Path:
    """Make a package like one of NVIDIA's."""
    tree = there.state / name
    for path in ("DEBIAN/control", *(f"usr/bin/{program}" for program in programs)):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("#!/bin/sh\n")
        (tree / path).chmod(0o755)
    head = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n"
    (tree / "DEBIAN/control").write_text(f"{head}{fields}Description: a stand-in\n")
    out = there.state / f"{name}.deb"
    subprocess.run(["/usr/bin/dpkg-deb", "--build", "--root-owner-group", tree, out], check=True, capture_output=True)
    return out


def test_takes_the_place_of_nvidias_packages(there: Machine) -> None:
    """And nvidia-docker2, which needs them in a version, stays."""
    theirs = [
        package(there, "nvidia-container-toolkit-base", "1.17.8-1", "", "nvidia-container-runtime", "nvidia-ctk"),
        package(there, "libnvidia-container-tools", "1.17.8-1", "", "nvidia-container-cli"),
        package(there, "nvidia-container-toolkit", "1.17.8-1", "", "nvidia-container-runtime-hook"),
        package(there, "nvidia-docker2", "2.14.0-1", "Depends: nvidia-container-toolkit (>= 1.13.0-1)\n"),
    ]
    packages.install(there, *theirs)
    packages.install(there, *(built.packages("deb")[name] for name in (MAIN, COMPAT)))
    assert there.run("dpkg --get-selections '*nvidia*' | grep -w install").stdout.split()[::2] == [
        COMPAT,
        "nvidia-docker2",
    ]
    assert there.run("readlink /usr/bin/nvidia-container-runtime").stdout == "gpushim-runtime\n"
    there.run("apt-get check")
