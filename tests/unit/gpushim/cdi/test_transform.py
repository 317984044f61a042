from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.cdi import transform, validate
from gpushim.cdi.generate import write
from unit.gpushim.cdi import hosts


@pytest.mark.parametrize(
    ("path", "old", "new", "result"),
    [
        ("/host/lib/x", "/host", "/", "/lib/x"),
        ("/host", "/host", "/", "/"),
        ("/host", "/host", "/other", "/other"),
        ("/host2/lib", "/host", "/", "/host2/lib"),
        ("/hos", "/host", "/", "/hos"),
        ("/lib/x", "/", "/host", "/host/lib/x"),
        ("/", "/", "/host", "/host"),
        ("/host/a//b/../c", "/host", "/h", "/h/a//b/../c"),
        ("lib/host/x", "/host", "/", "lib/host/x"),
        ("", "/", "/host", ""),
    ],
)
def test_path_is_moved_at_its_boundaries(path: str, old: str, new: str, result: str) -> None:
    assert transform.moved(path, old, new) == result


def members(spec: dict[str, Any]) -> tuple[Any, ...]:
    edits = spec["devices"][0]["containerEdits"]
    node, mount, hook = edits["deviceNodes"][0], edits["mounts"][0], edits["hooks"][0]
    return (
        node["path"],
        node.get("hostPath"),
        mount["hostPath"],
        mount["containerPath"],
        hook["path"],
        hook["args"][2],
    )


@pytest.mark.parametrize(
    ("old", "new", "where", "expected"),
    [
        (
            "/host",
            "/",
            "host",
            ("/dev/x0", "/dev/x0", "/lib/x.so", "/usr/lib/x.so", "/bin/x", "/usr/lib/a::/usr/lib/b"),
        ),
        (
            "/usr/lib/",
            "/opt",
            "container",
            ("/dev/x0", "/host/dev/x0", "/host/lib/x.so", "/opt/x.so", "/host/bin/x", "/opt/a::/opt/b"),
        ),
        (
            "/dev",
            "/d",
            "container",
            ("/d/x0", "/host/dev/x0", "/host/lib/x.so", "/usr/lib/x.so", "/host/bin/x", "/usr/lib/a::/usr/lib/b"),
        ),
        (
            "/hos",
            "/x",
            "host",
            ("/dev/x0", "/host/dev/x0", "/host/lib/x.so", "/usr/lib/x.so", "/host/bin/x", "/usr/lib/a::/usr/lib/b"),
        ),
    ],
)
def test_paths_of_the_host_or_of_containers_move(old: str, new: str, where: str, expected: tuple[Any, ...]) -> None:
    spec = hosts.foreign()
    transform.root(spec, old, new, where)
    assert members(spec) == expected


def test_node_gets_a_path_on_the_host_and_the_spec_the_version_for_it() -> None:
    edits = {"deviceNodes": [{"path": "/dev/x0"}, {"path": "/other"}]}
    spec = hosts.foreign(cdiVersion="0.3.0", devices=[{"name": "a", "containerEdits": edits}])
    transform.root(spec, "/dev", "/run/x/dev", "host")
    nodes = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes == [{"path": "/dev/x0", "hostPath": "/run/x/dev/x0"}, {"path": "/other"}]
    assert spec["cdiVersion"] == "0.5.0"


def test_moved_container_node_keeps_the_one_of_the_host() -> None:
    spec = hosts.foreign(devices=[{"name": "a", "containerEdits": {"deviceNodes": [{"path": "/dev/x0"}]}}])
    transform.root(spec, "/dev", "/d", "container")
    assert spec["devices"][0]["containerEdits"]["deviceNodes"] == [{"path": "/d/x0", "hostPath": "/dev/x0"}]


@pytest.mark.parametrize("host", ["mixed", "apart"])
def test_own_spec_stays_valid(host: str) -> None:
    spec = write.gpu_spec(getattr(hosts, host)(), hosts.KIND, ["index"], [])
    transform.root(spec, "/", "/host", "host")
    assert validate.findings(spec) == []


PATH = st.lists(st.sampled_from(["a", "ab", "b"]), max_size=4).map(lambda parts: "/" + "/".join(parts))
WHERE = st.sampled_from(["host", "container"])


@given(PATH, PATH, PATH)
def test_only_what_is_below_moves_and_moves_back(path: str, old: str, new: str) -> None:
    result = transform.moved(path, old, new)
    top = old if old == "/" else old + "/"
    if path != old and not path.startswith(top):
        assert result == path
    else:
        assert transform.moved(result, new, old) == path


@given(PATH, WHERE)
def test_nothing_changes_if_both_are_the_same(path: str, where: str) -> None:
    spec = hosts.foreign()
    before = copy.deepcopy(spec)
    transform.root(spec, path + "/", path, where)
    assert spec == before
