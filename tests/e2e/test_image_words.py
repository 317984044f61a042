"""What an image, not its user, puts into config.json, with the real engines: docs/requests.md has the table.

The image is an OCI archive written by hand, whose manifest, index and configuration say all that they can; for Docker
it is one of the older form, which has no annotations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import leftovers
from e2e.archives import ANNOTATION, GPUS, NAME, SAID, VARIABLE, _image, _packed, archive
from e2e.engines import Containerd, Docker
from e2e.podman import Podman, podman
from e2e.witness import Witness


def older(tree: Path, folder: Path) -> Path:
    """Write the same for Docker 20.10, which reads no OCI layout: there is no place for annotations."""
    folder.mkdir()
    layer, config = _image(tree)
    (folder / "layer.tar").write_bytes(layer)
    (folder / "config.json").write_text(json.dumps({**config, "annotations": {ANNOTATION: GPUS}}))
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return _packed(folder)


def words_in(spec: dict[str, Any]) -> dict[str, list[str]]:
    """Return what of the image's words is where in a config.json."""
    env = [entry.partition("=")[2] for entry in spec["process"]["env"] if entry.startswith(VARIABLE + "=")]
    annotations = [value for key, value in (spec.get("annotations") or {}).items() if ANNOTATION in key]
    return {"variables": env, "annotations": annotations}


def nothing_else(spec: dict[str, Any]) -> None:
    """Assert that no word of the image is anywhere but in variables and annotations."""
    rest = {key: value for key, value in spec.items() if key != "annotations"}
    rest["process"] = {key: value for key, value in spec["process"].items() if key not in ("env", "args")}
    assert not [word for word in (GPUS, SAID["index"], SAID["label"]) if word in json.dumps(rest)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, witness: Witness) -> Iterator[Podman]:
    """Podman over the witness."""
    with leftovers.state() as state, podman(state, None, witness.front) as engine:
        yield engine


def test_podman_copies_variables_and_the_manifests_annotations(
    engine: Podman, witness: Witness, busybox_tree: Path, tmp_path: Path
) -> None:
    engine.podman("load", "--quiet", f"--input={archive(busybox_tree, tmp_path / 'image')}")
    made = engine.podman("create", "--network=none", f"--cgroup-parent=/{engine.state.name}", NAME, "true")
    container = made.stdout.strip()
    engine.podman("start", "--attach", container, check=False)
    spec = json.loads(witness.copies(container)[0].content)
    assert words_in(spec) == {"variables": [SAID["variable"]], "annotations": [SAID["manifest"]]}
    nothing_else(spec)


def test_docker_copies_variables_alone(docker: Docker, witness: Witness, busybox_tree: Path, tmp_path: Path) -> None:
    docker.docker("load", f"--input={older(busybox_tree, tmp_path / 'image')}")
    container = docker.docker("create", "--network=none", "--runtime=witnessed", NAME, "true").stdout.strip()
    docker.docker("start", "--attach", container, check=False)
    spec = json.loads(witness.copies(container)[0].content)
    assert words_in(spec) == {"variables": [SAID["variable"]], "annotations": []}
    nothing_else(spec)


def test_containerd_copies_variables_alone(
    containerd: Containerd, witness: Witness, busybox_tree: Path, tmp_path: Path
) -> None:
    packed = archive(busybox_tree, tmp_path / "image")
    containerd.ctr("images", "import", str(packed))
    containerd.run(witness.front, "--rm", NAME, "words-of-ctr", "true", check=False)
    spec = json.loads(witness.copies("words-of-ctr")[0].content)
    assert words_in(spec) == {"variables": [SAID["variable"]], "annotations": []}
    nothing_else(spec)


def test_cri_copies_variables_alone(
    containerd: Containerd, witness: Witness, busybox_tree: Path, tmp_path: Path
) -> None:
    containerd.load(archive(busybox_tree, tmp_path / "image"), ("k8s.io",))
    with containerd.cri() as client:
        container = client.create(client.run_pod("witnessed"), NAME, ["true"])
        client.start(container)
    spec = json.loads(witness.copies(container)[0].content)
    assert words_in(spec) == {"variables": [SAID["variable"]], "annotations": []}
    nothing_else(spec)
