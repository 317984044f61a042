"""The OCI image: what is in it, that its programs run where a pod has no rights, and that two builds are equal."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from e2e import built, image, leftovers, trees
from e2e.podman import Podman, podman, store
from gpuplugin.snapshot import node_snapshot
from sample import turn

# What the manifests ask for.
POD = ("--rm", "--cap-drop=all", "--read-only", "--read-only-tmpfs=false", "--security-opt=no-new-privileges")
USERS = ("0:0", "65532:65532")
MACHINES = {"x86_64": 62, "aarch64": 183}  # as ELF has them
STATUS, NODE, LIB = "/var/lib/dpkg/status.d/", "/usr/share/gpushim/node/", f"/usr/lib/gpushim/{built.version_here()}/"
PROGRAMS = {
    "gpushim",
    "gpushim-device-plugin",
    "gpushim-dra-driver",
    "gpushim-hook",
    "gpushim-node",
    "gpushim-runtime",
}
MEGABYTES = 70  # unpacked
UNCHECKED = b"\1\0\0\0"  # in the head of bytecode: no time or text of a source stands in the way
# All modules of ours, and the distribution's that they need once in a while.
IMPORT = f"""
import importlib, pkgutil, sys
sys.path[:0] = ["{LIB}", "{LIB}vendor"]
import grpc.aio, prometheus_client.openmetrics.exposition, yaml, ssl, http.client, gpushim, gpuhook, gpuplugin, pynvml
for package in (gpushim, gpuhook, gpuplugin):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name not in ("gpushim.create.stub", "gpuhook.__main__"):
            importlib.import_module(module.name)
print(len(sys.modules))
"""


@pytest.fixture(scope="module")
def found() -> image.Image:
    return image.read(image.archive())


@pytest.fixture(scope="module")
def sbom() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(image.archive().with_suffix(".spdx.json").read_text())
    return told


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman with the image, and nothing of ours outside it."""
    images = store(tmp_path_factory.mktemp("podman") / "images", image.archive())
    with leftovers.state() as state, podman(state, images, Path("/usr/sbin/runc")) as engine:
        yield engine


def elves(found: image.Image) -> dict[str, bytes]:
    return {path: content for path, (_, content) in found.files.items() if content.startswith(b"\x7fELF")}


def debian(found: image.Image) -> dict[str, str]:
    """Return the versions of Debian's packages in an image."""
    texts = [
        found.text(path) for path, (member, _) in found.files.items() if path.startswith(STATUS) and member.isreg()
    ]
    fields = [dict(re.findall(r"^(\w+): (.+)$", text, re.MULTILINE)) for text in texts]
    return {each["Package"]: each["Version"] for each in fields}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("program", sorted(PROGRAMS - {"gpushim-hook", "gpushim-runtime"}))
def test_a_program_runs_without_any_right(engine: Podman, program: str, user: str) -> None:
    done = engine.run(*POD, f"--user={user}", f"--entrypoint=/usr/bin/{program}", image.NAME, "--version")
    assert done.stdout.split()[-1] == built.version_here()
    assert done.stderr == ""


@pytest.mark.parametrize("user", USERS)
def test_the_plugin_is_what_starts(engine: Podman, user: str) -> None:
    """In a container without a GPU and without the node's files it says what is missing, and nothing else."""
    done = engine.run(*POD, f"--user={user}", f"--env={node_snapshot.POD}=x", image.NAME, "--check", check=False)
    assert (done.returncode, done.stdout) == (12, "")
    assert re.fullmatch(r"gpushim-device-plugin: there is no /run/gpushim/inventory.json; .*\n", done.stderr)


def test_every_module_can_be_imported(engine: Podman) -> None:
    done = engine.run(*POD, "--entrypoint=/usr/bin/python3", image.NAME, "-IB", "-c", IMPORT, check=False)
    assert done.stderr == ""
    assert int(done.stdout) > 400


def test_no_file_gives_rights(found: image.Image) -> None:
    members = {path: member for path, (member, _) in found.files.items()}
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
    assert not [path for path, member in members.items() if not member.issym() and member.mode & 0o7022]
    assert not [path for path, member in members.items() if not (member.isreg() or member.issym() or member.isdir())]


def test_no_program_but_python_and_ours(found: image.Image) -> None:
    names = {Path(path).name for path, (member, _) in found.files.items() if re.match("/usr/s?bin/.", path)}
    assert {name for name in names if not name.startswith("python3")} == PROGRAMS
    assert not [path for path in elves(found) if ".so" not in path and not path.startswith("/usr/bin/python3")]


def test_every_library_is_there(found: image.Image, tmp_path: Path) -> None:
    names = {Path(path).name for path in found.files}
    for number, content in enumerate(elves(found).values()):
        (tmp_path / str(number)).write_bytes(content)
    command = ["/usr/bin/readelf", "--dynamic", "--wide", *map(str, tmp_path.iterdir())]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", told))
    assert "libcares.so.2" in needed
    assert needed - names == set()


def test_links_lead_somewhere(found: image.Image) -> None:
    links = {path: member.linkname for path, (member, _) in found.files.items() if member.issym()}
    targets = {path: posixpath.normpath(posixpath.join(posixpath.dirname(path), to)) for path, to in links.items()}
    merged = {path: re.sub("^/(bin|lib|lib64|sbin)/", r"/usr/\1/", target) for path, target in targets.items()}
    assert {path for path, target in merged.items() if target not in found.files} == set()


def test_what_is_imported_is_compiled_without_times(found: image.Image) -> None:
    tag = Path(found.files["/usr/bin/python3"][0].linkname).name.replace("python3.", "cpython-3")
    sources = [Path(path) for path in found.files if path.startswith("/usr/lib/") and path.endswith(".py")]
    cached = [str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc") for path in sources]
    assert [path for path in cached if path not in found.files or found.files[path][1][4:8] != UNCHECKED] == []
    assert [path for path in found.files if path.startswith(NODE) and path.endswith(".pyc")] == []


def test_nodes_get_what_packages_lay_down(found: image.Image, tmp_path: Path) -> None:
    for part in ("main", "device-plugin"):
        subprocess.run([trees.TOP / "packaging/install", tmp_path, part, built.bundled()], check=True)
    files = {path.relative_to(tmp_path): path for path in tmp_path.rglob("*") if path.is_file()}
    laid = {Path(path).relative_to(NODE): value for path, value in found.files.items() if path.startswith(NODE)}
    assert {path for path, (member, _) in laid.items() if member.isreg()} == set(files)
    assert all(laid[name][1] == path.read_bytes() for name, path in files.items())
    assert all(laid[name][0].mode & 0o777 == path.stat().st_mode & 0o777 for name, path in files.items())


def test_it_says_what_it_is(found: image.Image) -> None:
    config = found.config["config"]
    assert (config["User"], config["Entrypoint"]) == ("0:0", ["/usr/bin/gpushim-device-plugin"])
    assert config["Labels"]["org.opencontainers.image.version"] == built.version_here()
    size = sum(len(content) for _, content in found.files.values()) / 1e6
    print(f"{size:.1f} MB, compressed {image.archive().stat().st_size / 1e6:.1f} MB")
    assert size < MEGABYTES


def test_the_sbom_is_spdx(sbom: dict[str, Any]) -> None:
    messages = validate_full_spdx_document(parse_file(str(image.archive().with_suffix(".spdx.json"))))
    assert messages == []
    assert (sbom["spdxVersion"], sbom["packages"][0]["name"]) == ("SPDX-2.3", "gpushim")


def test_the_sbom_names_every_package(found: image.Image, sbom: dict[str, Any]) -> None:
    listed = {row["SPDXID"]: row for row in sbom["packages"]}
    versions = {row["name"]: row["versionInfo"] for key, row in listed.items() if key.startswith("SPDXRef-deb-")}
    assert versions == debian(found)
    assert {"libc6", "python3-grpcio", "python3.11-minimal"} <= set(versions)
    bundled = dict(re.findall(r"^([\w-]+)==(\S+)", (trees.TOP / "packaging/bundled.txt").read_text(), re.MULTILINE))
    assert bundled.items() <= {row["name"]: row["versionInfo"] for row in listed.values()}.items()
    assert all(row["licenseDeclared"] and row["externalRefs"] for row in listed.values())


def test_every_package_has_its_copyright_file(found: image.Image) -> None:
    for name in debian(found):
        place, _ = found.files.get(f"/usr/share/doc/{name}", (None, b""))
        owner = Path(place.linkname).name if place is not None and place.issym() else name
        assert f"/usr/share/doc/{owner}/copyright" in found.files, name


def test_nothing_that_was_left_out_is_there(found: image.Image) -> None:
    lines = (trees.TOP / "packaging/image/packages.txt").read_text().splitlines()
    assert {line for line in lines if re.match("[a-z]", line)} <= set(debian(found))
    assert not {line[1:] for line in lines if line.startswith("-")} & set(debian(found))


@pytest.mark.skipif(not turn(3), reason="twenty seconds, with every third commit; GPUSHIM_LONG=1")
def test_the_other_architecture_is_made_of_the_same_packages(found: image.Image) -> None:
    other = image.read(image.archive("aarch64"))
    assert other.config["architecture"] == "arm64"
    assert set(debian(other)) == set(debian(found))
    for arch, each in (("x86_64", found), ("aarch64", other)):
        assert {int.from_bytes(content[18:20], "little") for content in elves(each).values()} == {MACHINES[arch]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--arch", "riscv64"], "no image for riscv64: --arch is x86_64 or aarch64"),
        (["--arch"], "--arch needs a value"),
        (["--push"], "no option --push: there are --arch, --base, and a directory for the files"),
        (["one", "two"], "one directory is enough: one, two"),
    ],
)
def test_bad_arguments_are_refused(words: list[str], sentence: str, tmp_path: Path) -> None:
    command = [str(trees.TOP / "packaging/image/build"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"packaging/image/build: {sentence}\n")
    assert [*tmp_path.iterdir()] == []
