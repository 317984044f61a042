from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.cdi import transform, validate, write
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


OURS = [
    *("gpushim-hook", "prestart", "--log", "/r/log", "--lib", "a.so=/r/a.so.1", "--link", "t::/r/l", "--driver", "5"),
    *("--cover", "/r/params::/r/params", "--empty", "/r/empty", "--lib32", "b.so=/r/b.so::/r/all"),
]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("host", {3: "/n/log", 11: "/n/params::/r/params", 13: "/n/empty"}),
        ("container", {5: "a.so=/n/a.so.1", 7: "t::/n/l", 11: "/r/params::/n/params", 15: "b.so=/n/b.so::/n/all"}),
    ],
)
def test_arguments_of_our_hook_move_by_what_they_mean(where: str, expected: dict[int, str]) -> None:
    spec = hosts.foreign()
    hook = {"hookName": "prestart", "path": "/usr/bin/gpushim-hook", "args": OURS}
    spec["devices"][0]["containerEdits"]["hooks"] = [hook]
    transform.root(spec, "/r", "/n", where)
    assert hook["args"] == [expected.get(place, word) for place, word in enumerate(OURS)]


def test_every_path_option_of_our_hook_is_known_here() -> None:
    host = hosts.apart()
    host["files"]["compat32"] = []
    host["files"]["compute32"] = [{"path": "/usr/lib32/libcuda.so.5", "kind": "library32", "soname": "libcuda.so.1"}]
    (hook,) = write.gpu_spec(host, hosts.KIND, ["index"], [])["containerEdits"]["hooks"]
    args = hook["args"]
    options = {word for word, value in zip(args, args[1:]) if word.startswith("--") and "/" in value}
    assert options == set(transform._OURS)


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
