from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.config.policy import defaults
from gpushim.ground import errors
from gpushim.oci import device_names, selection
from unit.gpushim.oci.names import KINDS, MIG, PIECES, UUIDS, attempt


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    plain = {"index": index, "uuid": UUIDS[index % 4], "pci": f"00000000:{index:02x}:00.0", "mig": False}
    return {**plain, "node": f"/dev/nvidia{index}", "problem": None, **changes}


def mig(parent: int, index: int, uuid: str = MIG) -> dict[str, Any]:
    place = {"gpu": parent, "index": index, "gi": index + 1, "nodes": []}
    return {"uuid": uuid, "legacy": f"MIG-{UUIDS[parent]}/{index + 1}/0", **place}


def host(*gpus: dict[str, Any], migs: tuple[dict[str, Any], ...] = (), notes: tuple[str, ...] = ()) -> Any:
    nodes = {one["node"]: [195, one["index"], 0o666, 0, 0] for one in gpus}
    found = {"gpus": list(gpus), "mig": list(migs), "notes": list(notes), "policy": defaults()}
    return {**found, "nodes": nodes, "platform": "native"}


LOST = gpu(1, problem=f"GPU 1 ({gpu(1)['pci']}) does not answer NVML: GPU is lost")
FOUR = host(gpu(0), gpu(1), gpu(2), gpu(3, mig=True), migs=(mig(3, 0), mig(3, 1, MIG[:-1] + "f")))


def chosen(*names: str, inventory: Any = FOUR) -> list[Any]:
    gpus, migs = selection.select(device_names.parse(names, KINDS) or [], inventory)
    return [gpu["index"] for gpu in gpus] + [(mig["gpu"], mig["index"]) for mig in migs]


def refusal(*names: str, inventory: Any = FOUR) -> errors.GpushimError:
    with pytest.raises(errors.GpushimError) as caught:
        chosen(*names, inventory=inventory)
    return caught.value


UNKNOWN = """
    ALL All None VOID -1 +1 00 01 007 0x0 1e0 1.0 1_0 0. .0 1- -- 0-3-5 00-3 0-03 0- 0: :0 00:1 0:01 0:1:2 1234567890
    99999999999999999999999 \u0660 \u00b2 \uff10 0\u0663 \u2460
    GPU- GPU GPU-0 GPU-ab12 GPU-1111111 GPU-1111-1111 GPU-111111111 GPU-11111111--1
    GPU-1111111g GPU-11111111-11111 GPU-11111111-1111-1111-1111-1111111111111 GPU--11111111 GPU_11111111
    GPU-11111111-1111-1111-1111-111111111111-1 GPU-11111111-1111-1111-1111-111111111111x
    11111111-1111-1111-1111-111111111111
    MIG- MIG-0 MIG-aaaaaaaa MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeee MIG-GPU- MIG-GPU-11111111/1/0
    MIG-GPU-11111111-1111-1111-1111-111111111111 MIG-GPU-11111111-1111-1111-1111-111111111111/1
    MIG-GPU-11111111-1111-1111-1111-111111111111/1/ MIG-GPU-11111111-1111-1111-1111-111111111111/1/0/0
    MIG-GPU-11111111-1111-1111-1111-111111111111/01/0 MIG-GPU-11111111-1111-1111-1111-111111111111/-1/0
    3b:00 3b:00.00 3b:0.0 b:00.0 3g:00.0 000:3b:00.0 00000:3b:00.0 000000000:3b:00.0 :3b:00.0 3b-00.0 0000:3b:00:0
    /dev/nvidia0 ../x ../../etc/passwd --ldconfig=/x $(x) ; | ' " ` \\ * ? 0;1 0|1 nvidia0 gpu0 GPU
    a/b a=b a/b= /b=0 a/=0 a/b=/0 1a/b=0 a/1b=0 a-/b=0 a/b-=0 a/b=0- a/b=-0 a/b/c=0 a/b=c=d a/b=c/d a!/b=0 a/b=c!
    nvidia.com/gpu nvidia.com/gpu=
    ü/b=0 a/ü=0 a/b=ü
"""
ODD = ["a b", "0 1", "0\t1", "a b/c=d", "x\ny", "\x00", "\ud800", "A" * 60000]


@pytest.mark.parametrize("text", [*UNKNOWN.split(), *ODD])
def test_anything_else_is_kept_as_unknown_and_refused(text: str) -> None:
    items = device_names.parse([text], KINDS)
    assert items is not None
    assert [(kind, item_text) for kind, _, item_text in items] == [("unknown", text)]
    assert str(refusal(text)).startswith(f'NVIDIA_VISIBLE_DEVICES asks for GPU "{errors.quote(text)}", ')


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            "0,1,2,3,4,5",
            'NVIDIA_VISIBLE_DEVICES (as docker run --gpus 6 sets it) asks for GPU "4", but this host has 4',
        ),
        ("0,4", 'NVIDIA_VISIBLE_DEVICES asks for GPU "4"'),
        ("1,0,2,3,4", 'NVIDIA_VISIBLE_DEVICES asks for GPU "4"'),
    ],
)
def test_a_number_of_gpus_is_named_as_it_was_written(asked: str, says: str) -> None:
    assert str(refusal(*asked.split(","))).startswith(says)


CHOICES: list[tuple[str, list[Any]]] = [
    ("0", [0]),
    ("2 0", [2, 0]),
    ("0-2", [0, 1, 2]),
    (UUIDS[1], [1]),
    (UUIDS[1].upper(), [1]),
    ("GPU-11111111", [0]),
    ("GPU-22222222-2222-3", [2]),
    ("gpu-ABCDEF12-3456", [3]),
    ("02:00.0", [2]),
    ("00000000:02:00.0", [2]),
    (f"1 {UUIDS[1]} 01:00.0 nvidia.com/gpu=1", [1]),
    (f"{UUIDS[2]} GPU-11111111 1", [2, 0, 1]),
    ("3:0", [(3, 0)]),
    ("3:1 3:0", [(3, 1), (3, 0)]),
    (MIG, [(3, 0)]),
    (MIG.upper(), [(3, 0)]),
    (f"MIG-{UUIDS[3]}/2/0", [(3, 1)]),
    (f"3:0 {MIG} MIG-{UUIDS[3]}/1/0", [(3, 0)]),
    ("0 3:1", [0, (3, 1)]),
    ("3", [3]),
    ("all", [0, 1, 2, (3, 0), (3, 1)]),
    ("none", []),
]


@pytest.mark.parametrize(("names", "expected"), CHOICES)
def test_select_finds_devices_in_the_requests_order(names: str, expected: list[Any]) -> None:
    assert chosen(*names.split()) == expected


@pytest.mark.parametrize("name", ["4", "999999999", "04:00.0", "GPU-33333333", UUIDS[0][:-1] + "2"])
def test_absent_gpu_is_refused_with_the_list_of_present_ones(name: str) -> None:
    error = refusal("0", name)
    assert error.exit_code == errors.REQUEST
    assert f'asks for GPU "{name}", but this host has 4: 0 ({UUIDS[0]}), 1 ({UUIDS[1]}), ' in str(error)
    assert str(error).endswith("; use one of them, or all")


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("name", ["GPU-111", "gpu-1111111", "GPU-"])
def test_too_little_of_a_uuid(name: str, lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUR["policy"]["requests"], "list-devices-in-refusals", lists)
    said = f'GPU "{name}", which is too short for a UUID; write at least 8 digits of it'
    assert str(refusal(name)).endswith(said)


@pytest.mark.parametrize("name", ["0:0", "3:2", "9:9", MIG[:-1] + "0", f"MIG-{UUIDS[0]}/1/0"])
def test_absent_mig_instance_is_refused_with_the_list_of_present_ones(name: str) -> None:
    error = refusal(name)
    assert error.exit_code == errors.REQUEST
    assert f'MIG instance "{name}", but this host has 2: 3:0 ({MIG}), 3:1 (' in str(error)


@pytest.mark.parametrize(
    ("name", "inventory", "end"),
    [
        ("0:0", host(gpu(0)), "has none; name a GPU, or make MIG instances (nvidia-smi mig -cgi ... -C)"),
        ("0:0", host(gpu(0), notes=("without NVML",)), "has none (without NVML); fix that, then run gpushim refresh"),
        ("3:9", FOUR, "; use one of them, or all"),
        ("1:9", host(LOST, gpu(1, mig=True), migs=(mig(1, 0),)), "; use one of them"),
        ("9", host(gpu(0), gpu(1)), "; use one of them, or all"),
        ("9", host(gpu(0), LOST), "; use one of them"),
        ("9", host(gpu(0, mig=True)), "; use one of them"),
    ],
)
def test_what_a_refusal_advises_is_to_be_had(name: str, inventory: Any, end: str) -> None:
    assert str(refusal(name, inventory=inventory)).endswith(end)
    if end.endswith("or all"):
        assert chosen("all", inventory=inventory)


@pytest.mark.parametrize(
    ("name", "inventory", "notes"),
    [
        ("0", FOUR, []),
        ("3:0", FOUR, []),
        ("3", FOUR, ["it is in MIG mode; name an instance: 3:0, 3:1"]),
        ("3,3", FOUR, ["it is in MIG mode; name an instance: 3:0, 3:1"]),
        (
            "0",
            host(gpu(0, mig=True)),
            ["it is in MIG mode; make MIG instances (nvidia-smi mig -cgi ... -C), name one"],
        ),
        ("all", FOUR, []),
    ],
)
def test_a_gpu_in_mig_mode_that_is_named_by_itself_is_told(name: str, inventory: Any, notes: list[str]) -> None:
    disclosed: list[str] = []
    assert selection.select(device_names.parse([*name.split(",")], ()) or [], inventory, notes=disclosed) != ([], [])
    assert [note.partition("device in it: ")[2] for note in disclosed] == notes


def test_ambiguous_prefix_is_refused_with_the_candidates() -> None:
    message = str(refusal("GPU-22222222"))
    assert f"fits 2 GPUs: 1 ({UUIDS[1]}), 2 ({UUIDS[2]}); write more" in message
    assert UUIDS[0] not in message


def test_long_hosts_are_listed_in_part() -> None:
    message = str(refusal("99", inventory=host(*[gpu(index) for index in range(20)])))
    assert "15 (GPU-" in message
    assert "16 (GPU-" not in message
    assert " and 4 more; use" in message


@pytest.mark.parametrize("name", ["all", "0", MIG, "x"])
def test_host_without_gpu_is_an_inventory_error_with_its_notes(name: str) -> None:
    error = refusal(name, inventory=host(notes=("the module is not loaded",)))
    assert error.exit_code == errors.INVENTORY
    assert "no GPU was found on this host (the module is not loaded)" in str(error)


def test_none_needs_no_gpu() -> None:
    assert chosen("none", inventory=host()) == []


SICK = host(gpu(0, problem="it fell off the bus"), gpu(1), gpu(2, mig=True, problem="ECC"), migs=(mig(2, 0),))


def test_all_is_refused_beside_sick_gpus_with_both_ways_out() -> None:
    error = refusal("all", inventory=SICK)
    assert error.exit_code == errors.INVENTORY
    assert str(error) == (
        "the container asks for all GPUs, but not all can be used: GPU 0: it fell off the bus, GPU 2: ECC; fix that"
        f", or name those that can be used: {UUIDS[1]}"
    )


def test_all_is_refused_beside_what_could_not_be_listed() -> None:
    inventory = {**host(gpu(0)), "missing": ["GPU 1 is left out: NVML does not tell it"]}
    assert "all can be used: GPU 1 is left out: NVML does not tell it; " in str(refusal("all", inventory=inventory))
    assert chosen("0", inventory=inventory) == [0]


def test_all_mentions_gpus_in_mig_mode_without_instances() -> None:
    notes: list[str] = []
    gpus, migs = selection.select([("all", None, "all")], host(gpu(0), gpu(1, mig=True)), notes=notes)
    assert ([gpu["index"] for gpu in gpus], migs) == ([0], [])
    assert notes == ["GPU 1 is left out of all: it is in MIG mode and has no instance"]


@pytest.mark.parametrize(
    ("name", "problem"), [("0", "fell off"), (UUIDS[0], "fell off"), ("2:0", "ECC"), (MIG, "ECC")]
)
def test_named_sick_gpu_is_refused_with_its_problem(name: str, problem: str) -> None:
    error = refusal("1", name, inventory=SICK)
    assert error.exit_code == errors.REQUEST
    assert f'"{name}", which cannot be used: ' in str(error)
    assert problem in str(error)


@pytest.mark.parametrize("broken", [gpu(0, problem="it fell off the bus"), gpu(0, mig=True)])
def test_all_of_nothing_usable_is_refused(broken: dict[str, Any]) -> None:
    error = refusal("all", inventory=host(broken))
    assert error.exit_code == errors.INVENTORY
    assert (broken["problem"] or "MIG mode") in str(error)


BROKEN = "it fell off the bus"


def without(inventory: Any, node: str, **more: Any) -> Any:
    """The host without a GPU's node."""
    return {**inventory, "nodes": {path: one for path, one in inventory["nodes"].items() if path != node}, **more}


USABLE: list[tuple[Any, list[Any], list[str]]] = [  # host, what all-usable gives, what is noted
    (host(gpu(0), gpu(1)), [0, 1], []),
    (host(gpu(1), gpu(0, problem=BROKEN)), [0, 1], [f"GPU 0: {BROKEN}"]),
    (without(host(gpu(0, problem=BROKEN)), "/dev/nvidia0"), [], [f"GPU 0: {BROKEN}"]),
    (without(host(gpu(0), gpu(1, problem=BROKEN)), "/dev/nvidia1"), [0], [f"GPU 1: {BROKEN}"]),
    (host(gpu(0, problem=BROKEN), gpu(1, problem=BROKEN)), [0, 1], [f"GPU 0: {BROKEN}", f"GPU 1: {BROKEN}"]),
    ({**host(gpu(0)), "missing": ["GPU 1 is left out"]}, [0], ["GPU 1 is left out"]),
    (host(), [], []),
    (host(gpu(0), gpu(1, mig=True)), [0, 1], ["GPU 1 has no MIG instance, and is in MIG mode"]),
    (host(gpu(0), gpu(1, mig=True), migs=(mig(1, 1), mig(1, 0))), [0, (1, 0), (1, 1)], []),
    (host(gpu(1, mig=True, problem=BROKEN), migs=(mig(1, 0),)), [1], [f"GPU 1: {BROKEN}"]),
    (
        host(gpu(1, mig=True), migs=(mig(1, 0), {**mig(1, 1), "nodes": ["/dev/nvidia-caps/nvidia-cap9"]})),
        [(1, 0)],
        ["MIG instance 1:1 has no usable device nodes"],
    ),
    (
        host(gpu(1, mig=True), migs=({**mig(1, 1), "nodes": ["/dev/nvidia-caps/nvidia-cap9"]},)),
        [1],
        ["MIG instance 1:1 has no usable device nodes"],
    ),
    (without(host(gpu(0)), "/dev/nvidia0", platform="wsl"), [0], []),
]


@pytest.mark.parametrize(("inventory", "expected", "noted"), USABLE)
def test_all_usable_is_never_refused(inventory: Any, expected: list[Any], noted: list[str]) -> None:
    notes: list[str] = []
    meant: dict[str, list[Any]] = {}
    items = device_names.parse(["all-usable"], KINDS) or []
    gpus, migs = selection.select(items, inventory, notes=notes, devices_by_item=meant)
    assert [gpu["index"] for gpu in gpus] + [(mig["gpu"], mig["index"]) for mig in migs] == expected
    assert (notes, meant) == (noted, {"all-usable": [*gpus, *migs]})


@pytest.mark.parametrize("word", ["all", "all-usable"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_feature_that_is_not_there_is_refused_beside_all(word: str, order: int) -> None:
    inventory = {**host(gpu(0)), "features": {}}
    assert 'the CDI device "nvidia.com/gpu=gds"' in str(
        refusal(*[word, "nvidia.com/gpu=gds"][::order], inventory=inventory)
    )


def _identities(*inventories: Any) -> set[str]:
    gpus = [gpu for inventory in inventories for gpu in inventory["gpus"]]
    migs = [mig for inventory in inventories for mig in inventory["mig"]]
    return (
        {text for gpu in gpus for text in (gpu["uuid"], gpu["pci"])}
        | {mig["uuid"] for mig in migs}
        | {mig["legacy"] for mig in migs}
    )


GONE = {**host(gpu(1)), "absent": [{"index": 0, "uuid": UUIDS[0], "pci": gpu(0)["pci"]}]}


@pytest.mark.parametrize(("name", "what"), [("0", "GPU"), ("0-1", "GPU"), ("0:1", "MIG")])
def test_the_index_of_a_gpu_that_is_missing_is_no_other_gpus(name: str, what: str) -> None:
    said = str(refusal(name, inventory=GONE))
    assert said.startswith(f"NVIDIA_VISIBLE_DEVICES asks for {what}")
    assert f"but the GPU of that index ({UUIDS[0]}) is missing, and no other gets it; name" in said
    assert said.endswith(f"name a GPU by its UUID: {UUIDS[1]}")
    assert chosen("1", inventory=GONE) == [1]


def test_an_index_that_no_gpu_has_had_is_another_thing() -> None:
    assert "but this host has 1: 1 (" in str(refusal("2", inventory=GONE))


LEFT_OUT = f"GPU 2 ({gpu(2)['pci']}) is left out: NVML does not tell it"
TENANTS = [
    ("all", host(gpu(0), LOST)),
    ("all", host(LOST)),
    ("all", {**host(gpu(0)), "missing": [LEFT_OUT]}),
    ("all", host(gpu(3, mig=True))),
    ("all", host(notes=(LEFT_OUT,))),
    ("05:00.0", host(notes=(LEFT_OUT,))),
    ("GPU-22222222-2222-2222", host(gpu(0), LOST)),
    ("GPU-22222222", FOUR),
    ("0", GONE),
    ("0:1", GONE),
    ("x", FOUR),
    ("x", host(gpu(0), LOST, notes=(LEFT_OUT,))),
    (MIG, host(LOST, migs=(mig(1, 0),))),
    (MIG[:-1] + "0", FOUR),
    (MIG, host(gpu(0), notes=(LEFT_OUT,))),
]


@pytest.mark.parametrize(("name", "inventory"), TENANTS)
def test_among_strangers_no_refusal_tells_a_device_that_was_not_named(name: str, inventory: Any) -> None:
    rules = {**inventory["policy"]["requests"], "list-devices-in-refusals": False}
    error = refusal(name, inventory={**inventory, "policy": {"requests": rules}})
    said = str(error).replace(f'"{name}"', "").replace("nvidia-smi -mig 0", "")
    assert not [identity for identity in _identities(FOUR, inventory) if identity in said]
    assert not [letter for letter in said if letter.isdigit()], said  # no index, no bus id, no count


def test_all_is_in_index_order_whatever_the_snapshots() -> None:
    inventory = host(gpu(2), gpu(0), gpu(1, mig=True), migs=(mig(1, 1), mig(1, 0)))
    assert chosen("all", inventory=inventory) == [0, 2, (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("source", "start"),
    [
        ("env DOCKER_RESOURCE_GPU", 'DOCKER_RESOURCE_GPU asks for GPU "9"'),
        ("mounts", 'the container asks in its mounts for GPU "9"'),
        ("annotations", 'the container asks in its annotations for GPU "9"'),
    ],
)
def test_refusals_name_the_source(source: str, start: str) -> None:
    with pytest.raises(errors.GpushimError) as caught:
        selection.select([("index", 9, "9")], FOUR, source)
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("0", "0"),
        ("a b", "a b"),
        ("x\ny", "x\\ny"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x00", "\\x00"),
        ("\u0660", "\\u0660"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
        ("a" * 80, "a" * 80),
        ("a" * 81, "a" * 77 + "..."),
        ("a" * 10**6, "a" * 77 + "..."),
    ],
)
def test_quote_shows_what_can_be_shown(text: str, expected: str) -> None:
    assert errors.quote(text) == expected


@given(st.text())
def test_quote_is_short_printable_ascii(text: str) -> None:
    shown = errors.quote(text)
    assert len(shown) <= 80
    assert shown.isascii()
    assert shown.isprintable() or not shown


@given(st.lists(PIECES, max_size=6))
def test_select_answers_or_refuses(texts: list[str]) -> None:
    answer, error = attempt(chosen, *texts)
    if error:
        assert str(error).isprintable()
        assert len(str(error)) < 1000
        return
    assert len(answer) == len(set(answer))
