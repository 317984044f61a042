"""The table of authorization: every cell, by a config.json that asks by that source for that grant.

The table as it is here is written by hand, from docs/requests.md; it is compared with what containers get.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from gpuhook.nvidia import container_cli_configure
from gpushim.config import policy
from gpushim.decision.plan import plan
from gpushim.doctor import check_grants
from gpushim.ground.errors import GpushimError
from gpushim.oci import authorization, device_list, request
from gpushim.oci.authorization import SOURCES, SWITCHES, TABLE, VARIABLES
from unit.gpushim.decision.inventories import BUNDLE, snapshot

DIR = device_list.DEVICE_LIST
ANNOTATION = "cdi.k8s.io/x"
# How a container asks for each grant by each source, beside a GPU that it has by a mount.
ASKS: dict[tuple[str, str], dict[str, Any]] = {
    ("gpu", "variable"): {"env": ["NVIDIA_VISIBLE_DEVICES=1"]},
    ("gpu", "mount"): {"mounts": [f"{DIR}/1"]},
    ("gpu", "annotation"): {"annotations": {ANNOTATION: "nvidia.com/gpu=1"}},
    ("own-cdi", "variable"): {"env": ["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=special"]},
    ("own-cdi", "mount"): {"mounts": [f"{DIR}/cdi/nvidia.com/gpu/special"]},
    ("own-cdi", "annotation"): {"annotations": {ANNOTATION: "nvidia.com/gpu=special"}},
    ("foreign-cdi", "variable"): {"env": ["NVIDIA_VISIBLE_DEVICES=vendor.com/card=a"]},
    ("foreign-cdi", "mount"): {"mounts": [f"{DIR}/cdi/vendor.com/card/a"]},
    ("foreign-cdi", "annotation"): {"annotations": {ANNOTATION: "vendor.com/card=a"}},
    ("mig-config", "variable"): {"env": ["NVIDIA_MIG_CONFIG_DEVICES=all"]},
    ("mig-monitor", "variable"): {"env": ["NVIDIA_MIG_MONITOR_DEVICES=all"]},
    ("imex", "variable"): {"env": ["NVIDIA_IMEX_CHANNELS=3"]},
    ("imex", "mount"): {"mounts": [f"{DIR}/imex/3"]},
    ("imex", "annotation"): {"annotations": {ANNOTATION: "nvidia.com/gpu=imex-channel-3"}},
    **{(name, "variable"): {"env": [f"NVIDIA_{name.upper()}=enabled"]} for name in authorization.FEATURES},
    **{(name, "mount"): {"mounts": [f"{DIR}/cdi/nvidia.com/gpu/{name}"]} for name in authorization.FEATURES},
    **{
        (name, "annotation"): {"annotations": {ANNOTATION: f"nvidia.com/gpu={name}"}}
        for name in authorization.FEATURES
    },
    ("mps", "variable"): {"env": ["CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"]},
    ("mps", "policy"): {"env": []},
    ("capabilities", "variable"): {"env": ["NVIDIA_DRIVER_CAPABILITIES=video"]},
    ("no-conditions", "variable"): {"env": ["NVIDIA_DISABLE_REQUIRE=true"]},
    ("no-compat", "variable"): {"env": ["NVIDIA_DISABLE_CUDA_COMPAT=true"]},
    ("memory-limit", "variable"): {"env": ["GPUSHIM_MEMORY_LIMIT=8Gi"]},
    ("memory-limit", "annotation"): {"annotations": {"gpushim/memory-limit": "8Gi"}},
    ("gpu", "option"): {"options": [("device", "1")]},
    ("own-cdi", "option"): {"options": [("device", "nvidia.com/gpu=special")]},
    ("foreign-cdi", "option"): {"options": [("device", "vendor.com/card=a")]},
    ("mig-config", "option"): {"options": [("mig-config", "all")]},
    ("mig-monitor", "option"): {"options": [("mig-monitor", "all")]},
    ("imex", "option"): {"options": [("imex-channel", "3")]},
    ("capabilities", "option"): {"options": [("video", "")]},
}
# By grant and source: what must be so for an unprivileged container, and for one with CAP_SYS_ADMIN. "-": whatever
# is said there, nothing comes of it; a cell that is not here at all has no words by which anybody could ask.
ENV, ANNOTATIONS, MOUNTS, KIND, IMEX, MPS = "env", "annotations", "mounts", "kind", "imex", "mps"
EXPECTED: dict[tuple[str, str], tuple[set[str] | None, set[str] | None]] = {
    ("gpu", "variable"): ({ENV}, set()),
    ("gpu", "mount"): ({MOUNTS}, {MOUNTS}),
    ("gpu", "annotation"): ({ANNOTATIONS}, set()),
    ("own-cdi", "variable"): ({ENV}, set()),
    ("own-cdi", "mount"): ({MOUNTS}, {MOUNTS}),
    ("own-cdi", "annotation"): ({ANNOTATIONS}, set()),
    ("foreign-cdi", "variable"): ({ENV, KIND}, set()),
    ("foreign-cdi", "mount"): ({MOUNTS, KIND}, {MOUNTS}),
    ("foreign-cdi", "annotation"): ({ANNOTATIONS, KIND}, set()),
    ("mig-config", "variable"): (None, set()),
    ("mig-monitor", "variable"): (None, set()),
    ("imex", "variable"): ({ENV, IMEX}, {IMEX}),
    ("imex", "mount"): ({MOUNTS, IMEX}, {MOUNTS, IMEX}),
    ("imex", "annotation"): ({ANNOTATIONS, IMEX}, {IMEX}),
    **{(name, "variable"): ({ENV}, set()) for name in authorization.FEATURES},
    **{(name, "mount"): ({MOUNTS}, {MOUNTS}) for name in authorization.FEATURES},
    **{(name, "annotation"): ({ANNOTATIONS}, set()) for name in authorization.FEATURES},
    ("mps", "variable"): (None, None),
    ("mps", "policy"): ({MPS}, {MPS}),
    ("capabilities", "variable"): (set(), set()),
    ("no-conditions", "variable"): (set(), set()),
    ("no-compat", "variable"): (set(), set()),
    ("memory-limit", "variable"): ({ENV}, set()),
    ("memory-limit", "annotation"): ({ANNOTATIONS}, set()),
    ("gpu", "option"): (set(), set()),
    ("own-cdi", "option"): (None, None),
    ("foreign-cdi", "option"): (None, None),
    ("mig-config", "option"): (set(), set()),
    ("mig-monitor", "option"): (set(), set()),
    ("imex", "option"): ({IMEX}, {IMEX}),
    ("capabilities", "option"): (set(), set()),
}
CONDITIONS = [*SWITCHES, KIND]
SETTINGS = [
    set(chosen) for count in range(len(CONDITIONS) + 1) for chosen in itertools.combinations(CONDITIONS, count)
]


def rules(holds: set[str]) -> Any:
    """A policy under which exactly these conditions hold."""
    found: Any = policy.defaults()
    for condition, (section, key, allows, _) in SWITCHES.items():
        found[section][key] = allows if condition in holds else not allows
    found["cdi"]["foreign-kinds"] = ["vendor.com/card"] if KIND in holds else []
    return found


def asking(grant: str, privileged: bool, ask: dict[str, Any]) -> dict[str, Any]:
    """A config.json that asks for one thing, and has a GPU by a mount if that thing is none."""
    paths = [*ask.get("mounts", ()), *([] if grant in check_grants.DEVICES else [f"{DIR}/0"])]
    env = ["NVIDIA_REQUIRE_CUDA=cuda>=1", *ask.get("env", ())]
    return {
        "process": {"env": env, "capabilities": {"bounding": ["CAP_SYS_ADMIN"] if privileged else []}},
        "mounts": [{"source": "/dev/null", "destination": path} for path in paths],
        "annotations": ask.get("annotations"),
    }


def granted(wanted: request.Request | None, settings: dict[str, Any]) -> set[str]:
    """Return what a request grants."""
    if wanted is None:
        return set()
    items = [(form, text) for form, _, text in wanted.devices]
    found = {"gpu" for form, text in items if text == "1"}
    found |= {"own-cdi" if "nvidia.com" in text else "foreign-cdi" for form, text in items if form == "cdi"}
    found |= {"mig-config"} if wanted.mig_config else set()
    found |= {"mig-monitor"} if wanted.mig_monitor else set()
    found |= {"imex"} if wanted.imex else set()
    found |= {"capabilities"} if wanted.capabilities == ["video"] else set()
    found |= set() if wanted.requirements else {"no-conditions"}
    found |= set() if wanted.cuda_compat else {"no-compat"}
    found |= {"memory-limit"} if wanted.memory else set()
    inventory = snapshot(policy=settings)
    inventory["driver"] = {**inventory["driver"], "version": "615.71"}
    inventory["files"] = {**inventory["files"], "mps": [{"path": "/run/nvidia-mps", "kind": "directory"}]}
    if not {"cdi", "feature"} & {form for form, _ in items} and not wanted.mig_config and not wanted.mig_monitor:
        edits, _, _ = plan(wanted, inventory, BUNDLE)
        places = [edit.value["destination"] for edit in edits if edit.kind == "mount"]
        found |= {"mps"} if "/run/nvidia-mps" in places else set()
    return found | set(wanted.features)


def what_comes(grant: str, privileged: bool, ask: dict[str, Any], holds: set[str]) -> set[str]:
    """Ask for something under a policy, and say what is granted; a refusal grants nothing."""
    settings = rules(holds)
    wanted = None
    with contextlib.suppress(GpushimError):
        if "options" in ask:
            wanted = container_cli_configure.request(ask["options"], settings)
        else:
            wanted = request.read(asking(grant, privileged, ask), settings)
    return granted(wanted, settings)


def test_every_cell_is_expected_and_asked_for() -> None:
    named = {(grant, source) for grant, row in TABLE.items() for source, cell in row.items() if cell != ("never",)}
    assert named <= set(EXPECTED)
    assert set(EXPECTED) == set(ASKS)
    assert {source for _, source in EXPECTED} == set(SOURCES)


@pytest.mark.parametrize("privileged", [False, True], ids=["unprivileged", "privileged"])
@pytest.mark.parametrize(("grant", "source"), EXPECTED, ids=lambda each: str(each))
def test_the_table(grant: str, source: str, privileged: bool) -> None:
    """Under every combination of the switches, a container gets what the cell says and no more."""
    needs = EXPECTED[grant, source][privileged]
    by_itself = source in ("annotation", "option") and grant != "memory-limit"
    by_mount = set() if by_itself or source == "option" or grant in check_grants.DEVICES else {MOUNTS}
    for holds in SETTINGS:
        got = what_comes(grant, privileged, ASKS[grant, source], holds)
        if grant == "mps":
            assert ("mps" in got) is ({MPS} | by_mount <= holds), holds
        else:
            assert (grant in got) is (needs is not None and needs | by_mount <= holds), holds


@pytest.mark.parametrize("privileged", [False, True], ids=["unprivileged", "privileged"])
@pytest.mark.parametrize("source", ["variable", "mount", "annotation"])
def test_whatever_forbids_all_forbids_all_usable(source: str, privileged: bool) -> None:
    def read(word: str, holds: set[str]) -> Any:
        asks = ASKS["gpu", source]
        env = [text.replace("=1", f"={word}") for text in asks.get("env", ())]
        named = {key: value.replace("=1", f"={word}") for key, value in asks.get("annotations", {}).items()}
        ask = {"env": env, "mounts": [f"{DIR}/{word}"] if "mounts" in asks else [], "annotations": named}
        found = request.read(asking("gpu", privileged, ask), rules(holds))
        return found and found.own

    for holds in SETTINGS:
        assert (read("all-usable", holds) is None) is (read("all", holds) is None), holds
    assert read("all-usable", set(CONDITIONS)) == [("all-usable", None, "all-usable")]


@pytest.mark.parametrize("name", VARIABLES)
def test_with_variables_forbidden_none_widens_what_a_mount_gave(name: str) -> None:
    """Each variable that request.py can see, with a value that counts; two choose among what the GPU's owner has."""
    values = {"NVIDIA_VISIBLE_DEVICES": "1", "CUDA_VERSION": "12.0", "NVIDIA_IMEX_CHANNELS": "3"}
    values |= {"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps", "NVIDIA_DRIVER_CAPABILITIES": "all"}
    values |= {"NVIDIA_DISABLE_REQUIRE": "true", "NVIDIA_DISABLE_CUDA_COMPAT": "true"}
    value = values.get(name, "all" if "MIG" in name else "enabled")
    ask = {"env": [f"{name}={value}"]}
    assert what_comes("a feature", False, ask, {MOUNTS, KIND, IMEX}) <= {"no-conditions", "no-compat"}


def test_a_variable_without_a_row_is_not_seen() -> None:
    env = ["NVIDIA_NEW=enabled", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_ARCH=arch>=1", "SWARM=1"]
    assert set(request._environment({"env": env}, ["SWARM"])) == {entry.partition("=")[0] for entry in env[1:]}


@pytest.mark.parametrize(("grant", "source"), [("new", "variable"), ("gpu", "label")])
@pytest.mark.parametrize("privileged", [False, True])
def test_what_has_no_cell_is_an_error(grant: str, source: str, privileged: bool) -> None:
    with pytest.raises(KeyError):
        authorization.unmet_condition(grant, source, lambda: privileged, policy.defaults())


def test_every_variable_and_word_of_the_doctor_has_a_row() -> None:
    assert set(VARIABLES.values()) <= set(TABLE)
    assert {*check_grants.DEVICES, *authorization.EXTRA_GRANTS} == set(TABLE)
    assert {f"NVIDIA_{name.upper()}" for name in authorization.FEATURES} <= set(VARIABLES)


@pytest.mark.parametrize(("condition", "words"), [
    ("env", "while the container is unprivileged and [requests] accept-env-when-unprivileged is false"),
    ("mounts", "while [requests] accept-volume-mounts is false"),
    ("imex", "while [requests] ignore-imex-channel-requests is true"),
])  # fmt: skip
def test_the_reason_names_the_setting(condition: str, words: str) -> None:
    assert authorization.because(condition) == words
