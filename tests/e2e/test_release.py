"""A release: tools/release twice, and what apt, dnf, skopeo and Helm make of it in fresh roots and a registry."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import shlex
import shutil
import socket
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from e2e import built, chroots, engines, helm, leftovers, packages, pages, released, rpm_packages, trees
from e2e.installed import Machine
from e2e.packages import MAIN
from sample import turn

VERSION = built.version_here()
SIGNATURES = {
    *("SHA256SUMS.asc", "gpushim.asc", "apt/dists/stable/InRelease", "apt/dists/stable/Release.gpg"),
    "rpm/repodata/repomd.xml.asc",
}
# What tells of rpms, which have signatures in them, tells their size and checksum.
OF_RPMS = re.compile(r'[0-9a-f]{64}|\b(package|start|end)="\d+"|<(open-)?size>\d+|SIGNATURE')
CONTENT = "%{SHA256HEADER} %{PAYLOADDIGEST}"
PACKAGES = (trees.TOP / "docs/packages.md").read_text()
RELEASING = (trees.TOP / "docs/releasing.md").read_text()
ADDRESS = "https://packages.example.org/gpushim"
UPDATE = (
    "apt-get update --error-on=any -o Dir::Etc::SourceList=sources.list.d/gpushim.sources"
    " -o Dir::Etc::SourceParts=- -o APT::Get::List-Cleanup=0 -o APT::Sandbox::User=root"
)
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -o APT::Sandbox::User=root"
# What is of Debian alone, and what Fedora's package of Python would have at once.
DEBIANS = (
    "/etc/debian_version /etc/dpkg /usr/*bin/*dpkg* /usr/*bin/apt* /usr/*bin/deb-* /usr/*bin/debconf* /usr/*/dpkg"
)
REGISTRY = "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {data}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"


@pytest.fixture(scope="module")
def signed() -> Path:
    return released.release(signed=True)


@pytest.fixture
def debian(debian_tree: Path) -> Iterator[Machine]:
    with packages.machine("trixie", debian_tree) as there:
        yield there


@dataclass
class Fedora:
    """As much of one as Debian has: rpm and dnf, and a package that provides what ours want of a distribution."""

    prefix: tuple[str, ...]
    state: Path

    def run(self, line: str, *, check: bool = True) -> engines.Done:
        """Run a line of shell as root."""
        env = {"PATH": engines.SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
        return engines.run([*self.prefix, "/bin/sh", "-c", f"cd /root; {line}"], check=check, env=env)

    def dnf(self, words: str, *, check: bool = True) -> engines.Done:
        """Run dnf, for which no repository may be missing."""
        return self.run(f"dnf --assumeyes --quiet --setopt=skip_if_unavailable=0 {words}", check=check)

    def knows(self, site: str) -> None:
        """Write the page's settings of the repository on a site."""
        settings = shlex.quote(block(PACKAGES, "[gpushim]", site))
        self.run(f"mkdir -p /root /etc/yum.repos.d; printf %s {settings} >/etc/yum.repos.d/gpushim.repo")


@pytest.fixture
def fedora() -> Iterator[Fedora]:
    with leftovers.state() as state, chroots.entered("rpm") as place:
        rpm_packages.stand_in(state, "system", rpm_packages.SYSTEM)
        yield Fedora(place.prefix, state)


def block(page: str, first: str, address: str) -> str:
    """Return a page's block that begins with a line, for another address than the page's."""
    (found,) = (each.text for each in pages.blocks(page) if each.text.startswith(first))
    return found.replace(ADDRESS, address)


def plain(file: Path) -> bytes:
    """Return what of a file does not depend on whether it, or an rpm, is signed."""
    if file.suffix == ".rpm":
        asked = ["/usr/bin/rpm", "-qp", "--queryformat", CONTENT, str(file)]
        return subprocess.run(asked, check=True, capture_output=True).stdout
    content = file.read_bytes()
    content = gzip.decompress(content) if file.name.endswith(".xml.gz") else content
    if ".xml" in file.suffixes or file.name == f"gpushim-{VERSION}.spdx.json":
        return OF_RPMS.sub("", content.decode()).encode()
    return hashlib.sha256(content).digest()


@pytest.mark.skipif(not turn(2, 1), reason="a minute and a half, with every second commit; GPUSHIM_LONG=1")
def test_two_runs_give_the_same_bytes_signatures_apart(signed: Path) -> None:
    one, two = (
        {re.sub("[0-9a-f]{64}-", "", str(path.relative_to(top))): path for path in top.rglob("*") if path.is_file()}
        for top in (released.release(signed=False), signed)
    )
    assert set(two) - set(one) == SIGNATURES
    assert set(one) - set(two) == set()
    sums = {name for name in one if name != "SHA256SUMS" and plain(one[name]) != plain(two[name])}
    assert sums == set()
    assert {path.stat().st_mtime for path in one.values()} == {released.EPOCH}


def test_it_has_everything_of_one_version(signed: Path) -> None:
    files = {path.name for path in signed.iterdir()}
    wanted = {f"gpushim-{VERSION}{end}" for end in (".tar.gz", ".tgz", ".spdx.json", "-1.src.rpm")}
    wanted |= {f"gpushim-{VERSION}-x86_64{end}" for end in (".tar", ".spdx.json", "-base.tar")}
    wanted |= {"SHA256SUMS", "SHA256SUMS.asc", "gpushim.asc", "gpushim.yaml", "uninstall.yaml", "apt", "rpm"}
    assert files == wanted
    told = set(re.findall(r"`([\w./-]+)`", re.sub(r"(?s).*\| --- \|(.*?)\n\n.*", r"\1", RELEASING)))
    named = {name.replace("0.1.0", VERSION) for name in told}
    assert {name for name in wanted if name not in named} <= {"apt", "rpm", f"gpushim-{VERSION}-x86_64.spdx.json"}


def test_the_list_of_contents_is_spdx_and_has_every_package(signed: Path) -> None:
    place = signed / f"gpushim-{VERSION}.spdx.json"
    assert validate_full_spdx_document(parse_file(str(place))) == []
    listed = json.loads(place.read_text())["packages"]
    files = {
        path.name: path for path in (*signed.glob("apt/pool/*"), *signed.glob("rpm/*.rpm"), *signed.glob("*.rpm"))
    }
    sums = {row["packageFileName"]: row["checksums"][0]["checksumValue"] for row in listed if "checksums" in row}
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    bundled = re.findall(r"^([\w-]+)==", (trees.TOP / "packaging/bundled.txt").read_text(), re.MULTILINE)
    assert {*bundled} <= {row["name"] for row in listed}


def test_the_sources_are_those_of_the_packages(signed: Path, tmp_path: Path) -> None:
    subprocess.run(["/bin/tar", "-xzf", signed / f"gpushim-{VERSION}.tar.gz", "-C", tmp_path], check=True)
    listed = subprocess.run(
        ["/usr/bin/git", "ls-files"], cwd=trees.TOP, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert [name for name in listed if not (tmp_path / f"gpushim-{VERSION}" / name).is_file()] == []


def test_users_verify_single_files_as_the_page_says(signed: Path) -> None:
    """In a keyring of their own, of a short name: gpg's agent listens at a socket there."""
    lines = block(RELEASING, "gpg --import", "").splitlines()
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        script = "\n".join(["trap 'gpgconf --kill all' EXIT", *lines]).replace(
            "rpmkeys", f"rpmkeys --dbpath={home}/rpm"
        )
        env = {"PATH": engines.SYSTEM_PATH, "GNUPGHOME": home, "LC_ALL": "C.UTF-8"}
        command = ["/bin/sh", "-euc", script]
        done = subprocess.run(command, cwd=signed, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Good signature from" in done.stderr
    assert "digests signatures OK" in done.stdout


def test_apt_installs_from_the_signed_repository(debian: Machine, signed: Path) -> None:
    with released.site(signed) as site:
        debian.write("/etc/apt/keyrings/gpushim.asc", (signed / "gpushim.asc").read_text())
        debian.write("/etc/apt/sources.list.d/gpushim.sources", block(PACKAGES, "Types: deb", site.url))
        debian.run(UPDATE)
        (line,) = re.findall("^apt install (gpushim .*)$", PACKAGES, re.MULTILINE)
        debian.run(f"{INSTALL} {line}")
    assert debian.run("gpushim --version").stdout == f"gpushim {VERSION}\n"
    assert debian.run("readlink /usr/bin/nvidia-container-runtime").stdout == "gpushim-runtime\n"
    assert "o=gpushim,a=stable,n=stable" in debian.run("apt-cache policy").stdout
    assert [path for path in site.asked if "/by-hash/SHA256/" in path]
    assert not [path for path in site.asked if path.endswith("Packages.gz")]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (f"apt/pool/gpushim_{VERSION}-1_all.deb", "Hash Sum mismatch|unexpected size"),
        ("", "Release' is not signed"),
    ],
)
def test_apt_refuses_what_nobody_signed(
    debian: Machine, signed: Path, tmp_path: Path, change: str, sentence: str
) -> None:
    """What somebody has changed on the web server, and a release whose signatures are gone."""
    with released.site(changed(signed, tmp_path, change)) as site:
        debian.write("/etc/apt/keyrings/gpushim.asc", (signed / "gpushim.asc").read_text())
        debian.write("/etc/apt/sources.list.d/gpushim.sources", block(PACKAGES, "Types: deb", site.url))
        done = debian.run(f"{UPDATE} && {INSTALL} gpushim", check=False)
    assert done.returncode
    assert re.search(sentence, done.stderr), done.stderr
    assert debian.run("ls /usr/bin/gpushim", check=False).returncode


def changed(release: Path, directory: Path, path: str) -> Path:
    """Copy a release's repositories, with a file changed or without signatures; return the copy."""
    for name in ("apt", "rpm"):
        shutil.copytree(release / name, directory / name)
    shutil.copy(release / "gpushim.asc", directory)
    for name in SIGNATURES if not path else ():
        (directory / name).unlink(missing_ok=True)
    if path:
        content = bytearray((directory / path).read_bytes())
        content[len(content) // 3] ^= 1
        (directory / path).write_bytes(content)
    return directory


def test_dnf_installs_from_the_signed_repository_and_removes(fedora: Fedora, signed: Path) -> None:
    with released.site(signed) as site:
        fedora.knows(site.url)
        (line,) = re.findall("^dnf install (gpushim .*)$", PACKAGES, re.MULTILINE)
        fedora.dnf(f"install {line} {fedora.state}/noarch/system-*.rpm")
    assert fedora.run("gpushim --version").stdout == f"gpushim {VERSION}\n"
    assert fedora.run("readlink /usr/bin/nvidia-container-runtime").stdout == "gpushim-runtime\n"
    fedora.dnf("remove gpushim")
    assert fedora.run("ls /usr/bin/gpushim /usr/lib/gpushim", check=False).stdout == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("rpm/repodata/repomd.xml", "repomd.xml GPG signature verification error|Bad GPG signature"),
        ("", "404|gpushim.asc"),
    ],
)
def test_dnf_refuses_what_nobody_signed(
    fedora: Fedora, signed: Path, tmp_path: Path, change: str, sentence: str
) -> None:
    with released.site(changed(signed, tmp_path, change)) as site:
        fedora.knows(site.url)
        done = fedora.dnf(f"install gpushim {fedora.state}/noarch/system-*.rpm", check=False)
    assert done.returncode
    assert re.search(sentence, done.stdout + done.stderr), done.stdout + done.stderr
    assert fedora.run("ls /usr/bin/gpushim", check=False).returncode


@pytest.mark.skipif(not turn(2), reason="a minute, with every second commit; GPUSHIM_LONG=1")
def test_fedoras_tools_alone_build_the_rpms(fedora: Fedora) -> None:
    """Where there is neither dpkg nor apt, by a newer rpm; what is missing is named as Fedora calls it."""
    fedora.run(f"rm -rf {DEBIANS}")
    assert fedora.run("command -v dpkg dpkg-query apt-get", check=False).stdout == ""
    top = built.checkout(trees.TOP, fedora.state / "checkout")
    (top / ".venv").unlink()  # which is Debian's
    build = f"GPUSHIM_BUNDLED={built.bundled()} {top}/packaging/rpm/build {fedora.state}/out"
    fedora.run(f"mkdir -p {built.bundled()} && {build}")
    names = {path.name for path in (fedora.state / "out").iterdir()}
    assert names == {path.name for path in built.packages("rpm").values()}
    files = [
        fedora.run(f"rpm -qpl {place}").stdout
        for place in (
            f"{fedora.state}/out/gpushim-{VERSION}-1.noarch.rpm",
            shared(fedora, built.packages("rpm")[MAIN]),
        )
    ]
    assert files[0] == files[1]
    fedora.run("rm /usr/bin/rpmbuild /usr/lib/python3*/ensurepip -r")
    said = fedora.run(f"{top}/packaging/rpm/build {fedora.state}/again", check=False)
    wanted = "packaging/rpm/build: programs are missing; as root: dnf install rpm-build python3-pip\n"
    assert (said.returncode, said.stderr) == (1, wanted)


def shared(there: Fedora, file: Path) -> Path:
    """Copy a file to where a machine sees it."""
    return Path(shutil.copy(file, there.state / f"shared-{file.name}"))


def program(name: str) -> str:
    """Return a program of Debian's package of that name; skip the test where there is none."""
    found = shutil.which(name, path=f"{trees.TOP}/.cache/{name}/usr/bin:/usr/bin")
    if not found:
        pytest.skip(f"there is no {name}, of Debian's package of that name; tools/setup.sh test brings it")
    return found


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry without TLS, by host and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "registry.yml").write_text(REGISTRY.format(data=tmp_path / "registry", port=port))
    command = [program("docker-registry"), "serve", str(tmp_path / "registry.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            assert leftovers.until(answers(f"http://127.0.0.1:{port}/v2/"), 30.0)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


def answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(url):
            return True
        return False

    return ask


def test_a_registry_gets_image_and_chart_and_helm_pulls(signed: Path, registry: str, tmp_path: Path) -> None:
    """By the commands of the page; what comes back has the digests that are signed."""
    text = block(RELEASING, "skopeo copy", "").replace("registry.example.org", registry)
    copy, push = map(shlex.split, text.replace("/srv/gpushim/0.1.0", str(signed)).splitlines())
    command = [program("skopeo"), "copy", "--dest-tls-verify=false", *copy[2:]]
    subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(signed / f"gpushim-{VERSION}-x86_64.tar") as archive:
        index = archive.extractfile("index.json")
        assert index
        (entry,) = json.load(index)["manifests"]
    asked = urllib.request.Request(f"http://{registry}/v2/gpushim/manifests/0.1.0")
    asked.add_header("Accept", entry["mediaType"])
    with urllib.request.urlopen(asked) as answer:
        assert answer.headers["Docker-Content-Digest"] == entry["digest"]
    helm.push(Path(push[2]), push[3])
    (tmp_path / "pulled").mkdir()
    pulled = helm.pull(f"oci://{registry}/charts/gpushim", tmp_path / "pulled", "0.1.0")
    assert pulled.read_bytes() == (signed / f"gpushim-{VERSION}.tgz").read_bytes()


def test_helm_renders_the_packed_chart_as_the_plain_file_has_it(signed: Path) -> None:
    packed = [*yaml.safe_load_all(helm.template(signed / f"gpushim-{VERSION}.tgz"))]
    plain = [*yaml.safe_load_all((signed / "gpushim.yaml").read_text())]
    assert sorted(map(str, plain)) == sorted(
        map(str, [*packed, next(one for one in plain if one["kind"] == "Namespace")])
    )
