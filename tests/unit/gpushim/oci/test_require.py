from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushim.config import policy
from gpushim.ground import bounds, errors
from gpushim.oci import request, require
from gpushim.oci.authorization import Gate

HOST = {"cuda": "12.2", "driver": "535.183.01", "arch": "8.0", "brand": "Nvidia"}
ADVICE = ", please update your driver to a newer version, or use an earlier cuda container"
CUDA_IMAGE = (
    "cuda>=12.3 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=470,driver<471 "
    "brand=nvidia,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536"
)


def gate(ignored: list[str] | None = None) -> Gate:
    return Gate(lambda: False, policy.defaults(), [] if ignored is None else ignored, {})


def failure(requirements: list[tuple[str, str]], fact: dict[str, str | None]) -> errors.GpushimError | None:
    try:
        require.check(requirements, [fact])
    except errors.GpushimError as error:
        return error
    return None


def holds(*expressions: str, **changes: str | None) -> bool:
    requirements = [(f"NVIDIA_REQUIRE_{number}", text) for number, text in enumerate(expressions)]
    error = failure(requirements, {**HOST, **changes})
    assert error is None or error.exit_code == errors.REQUIREMENT, error
    return error is None


TRUE = """
    cuda>=12.2 cuda>=12.2.0 cuda>=12.02 cuda>=012.2 cuda>=12 cuda>=9.0 cuda>=2 cuda>12 cuda>12.1 cuda>12.1.9 cuda=12.2
    cuda=12.2.0 cuda=12.2.0.0
    cuda!=12 cuda!=12.20 cuda<=12.2 cuda<=12.3 cuda<=13 cuda<12.3 cuda<12.10 cuda<100 CUDA>=12
    Cuda<13 cuda>=12. cuda>=.1 cuda>=12..1 cuda<9999999999999999999.0
    driver>=535 driver>=535.183 driver>=535.183.01 driver>=535.183.1 driver>535.54.03 driver<536 driver<535.183.02
    driver=535.183.01 driver!=535 driver>=450.80.02 DRIVER>=1
    arch>=8.0 arch>=8 arch=8 arch<9.0 arch!=7.5 arch>=7.5 arch<=8.0 arch<8.6
    brand=nvidia brand=NVIDIA brand=Nvidia BRAND=nvidia brand!=tesla brand!=nvidiartx brand!=geforce
    cuda>=12,driver>=535 cuda>=12,driver>=535,arch>=8,brand=nvidia cuda>=12,,driver>=535 ,cuda>=12, , ,,,
"""
FALSE = """
    cuda>=12.3 cuda>=12.2.1 cuda>=12.10 cuda>=13 cuda>=100 cuda>12.2 cuda>12.2.0 cuda=12 cuda=12.20 cuda=1.22
    cuda!=12.2
    cuda!=12.2.0 cuda<=12.1 cuda<=12 cuda<12.2 cuda<12 cuda<9 cuda>=9999999999999999999.0 CUDA>=13 cuda<2
    driver>=536 driver>=535.183.02 driver>=535.183.1.1 driver<535 driver<535.183.01 driver>535.183.01 driver=535
    driver!=535.183.1 driver<471
    arch>=8.6 arch>8.0 arch<8 arch=7.5 arch!=8.0 arch>=10
    brand=tesla brand=nvidi brand=nvidiartx brand!=nvidia brand!=NVIDIA brand=unknown
    cuda>=12,driver>=536 cuda>=13,driver>=535 cuda>=12,brand=tesla brand=tesla,cuda>=12
"""


@pytest.mark.parametrize("expression", TRUE.split())
def test_condition_holds(expression: str) -> None:
    assert holds(expression)


@pytest.mark.parametrize("expression", FALSE.split())
def test_condition_does_not_hold(expression: str) -> None:
    assert not holds(expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("cuda>=13 driver>=535", True),
        ("driver>=535 cuda>=13", True),
        ("cuda>=13 driver>=536", False),
        ("cuda>=13  \t driver>=535", True),
        ("cuda>=13,driver>=535 brand=nvidia,arch>=8", True),
        ("cuda>=13 brand=tesla,driver>=535 brand=nvidia,driver>=536", False),
        (", cuda>=13", False),
        (", cuda>=12", True),
        ("   ", True),
        ("", True),
        (CUDA_IMAGE, True),
        (CUDA_IMAGE.replace("brand=nvidia,driver>=535,driver<536", ""), False),
    ],
)
def test_groups_are_alternatives(expression: str, expected: bool) -> None:
    assert holds(expression) is expected


def test_every_variable_must_hold() -> None:
    assert holds("cuda>=12", "driver>=535")
    assert not holds("cuda>=12", "driver>=536")
    assert not holds("cuda>=13", "driver>=535")


@pytest.mark.parametrize("unknown", [None, ""])
@pytest.mark.parametrize("name", ["cuda", "driver", "arch", "brand"])
def test_unknown_facts_satisfy(name: str, unknown: str | None) -> None:
    expression = f"{name}=99"
    assert not holds(expression)
    assert holds(expression, **{name: unknown})


def test_without_a_gpu_only_the_driver_counts() -> None:
    require.check([("NVIDIA_REQUIRE_X", "arch>=99,brand=x")], [{"cuda": "12.2", "driver": "535"}])
    require.check([("NVIDIA_REQUIRE_X", "cuda>=99")], [])
    with pytest.raises(errors.GpushimError):
        require.check([("NVIDIA_REQUIRE_X", "cuda>=13")], [{"cuda": "12.2", "driver": "535"}])


@pytest.mark.parametrize("archs", [("7.5", "8.0"), ("8.0", "7.5"), ("8.0", "8.0", "7.5")])
def test_every_gpu_must_satisfy(archs: tuple[str, ...]) -> None:
    facts = [{**HOST, "arch": arch} for arch in archs]
    with pytest.raises(errors.GpushimError, match=r"arch 7\.5"):
        require.check([("NVIDIA_REQUIRE_ARCH", "arch>=8")], facts)


@pytest.mark.parametrize("driver", ["535.183.01-custom", "535.183.01 beta", "535.183.01rc1"])
def test_suffix_of_the_hosts_version_does_not_count(driver: str) -> None:
    assert holds("driver>=535.183.01", driver=driver)
    assert not holds("driver>=535.183.02", driver=driver)


def test_hosts_version_without_a_number_is_unknown() -> None:
    assert holds("driver>=600", driver="unknown")


INVALID = """
    foo foo>=1 >=12 =12 cuda cuda12 cuda>= cuda= cuda! cuda!12 cuda=>12 cuda==12 cuda=<12 cuda<>12 cuda!==12 cuda>>12
    cuda>=12.x cuda>=v12 cuda>=12-rc1 cuda>=a cuda>=. cuda>=... cuda>=1,2 cuda>=-1 cuda>=\u0663 cuda>=12.2=1
    cuda~12 cu-da>=1
    driver>=535a driver>=535_1 brand brand= brand!= brand<tesla brand>=tesla brand==tesla arch>=sm_80 cuda:12
    csv-mounts=all base-only \u0663>=1 cuda>=\x00 \x1b[31m \ud800 nvidia.com/gpu=all cuda>=$(x)
"""


@pytest.mark.parametrize("term", INVALID.split())
def test_what_is_not_understood_is_refused_by_name(term: str) -> None:
    with pytest.raises(errors.GpushimError) as caught:
        require.check([("NVIDIA_REQUIRE_X", term)], [HOST])
    assert caught.value.exit_code == errors.REQUEST
    assert str(caught.value).startswith('invalid requirement: NVIDIA_REQUIRE_X has the term "')
    assert str(caught.value).isascii()


@pytest.mark.parametrize("expression", ["cuda>=13 foo=1 cuda>=12", "foo=1 cuda>=12", "cuda>=13,foo=1 cuda>=12"])
def test_invalid_term_before_the_first_true_group_is_refused(expression: str) -> None:
    with pytest.raises(errors.GpushimError, match="invalid requirement"):
        require.check([("NVIDIA_REQUIRE_X", expression)], [HOST])


def test_groups_after_the_first_true_one_are_not_read() -> None:
    assert holds("cuda>=12 foo=1")


def test_failure_reads_as_users_know_it() -> None:
    with pytest.raises(errors.GpushimError) as caught:
        require.check([("NVIDIA_REQUIRE_CUDA", "cuda>=12.3 driver>=600")], [HOST])
    assert str(caught.value) == (
        f"unsatisfied condition: cuda>=12.3{ADVICE} (NVIDIA_REQUIRE_CUDA; driver 535.183.01 has CUDA 12.2, "
        "the GPU arch 8.0 and brand Nvidia); its other alternatives do not hold either: driver>=600; "
        "NVIDIA_DISABLE_REQUIRE=true in its environment starts the container all the same"
    )


def refusal(expression: str) -> str:
    with pytest.raises(errors.GpushimError) as caught:
        require.check([("NVIDIA_REQUIRE_X", expression)], [HOST])
    return str(caught.value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("cuda>=13", "brand Nvidia); NVIDIA_DISABLE_REQUIRE"),
        ("cuda>=13 , ,,", "brand Nvidia); NVIDIA_DISABLE_REQUIRE"),
        ("cuda>=13 driver>=600,driver<601 arch>9", "either: driver>=600,driver<601 or arch>9; "),
        ("cuda>=13 " * 18, f"either: {' or '.join(['cuda>=13'] * 16)} or 1 more; "),
        ("cuda>=13 " + f"brand={'x' * 70} " * 700, f"brand={'x' * 70} or 695 more; "),
    ],
)
def test_failure_lists_the_alternatives_that_fit(expression: str, words: str) -> None:
    assert words in refusal(expression)
    assert len(refusal(expression)) < 1000


def test_what_a_failure_advises_works() -> None:
    (advised,) = [word for word in refusal("cuda>=13").split() if "=true" in word]
    env = [f"{name}=cuda>=13" for name in ("NVIDIA_REQUIRE_CUDA",)] + ["NVIDIA_VISIBLE_DEVICES=0", advised]
    wanted = request.read({"process": {"env": env}}, policy.defaults())
    assert wanted is not None
    assert wanted.requirements == []


@pytest.mark.parametrize(
    ("expression", "start"),
    [
        ("driver>=600", "unsatisfied condition: driver>=600 ("),
        ("cuda>12.2", "unsatisfied condition: cuda>12.2 ("),
        ("cuda>=12.3,driver>=1", f"unsatisfied condition: cuda>=12.3,driver>=1{ADVICE} ("),
        ("arch>=9 cuda>=13", "unsatisfied condition: arch>=9 ("),
        ("cuda>=" + "9" * 200, "unsatisfied condition: cuda>=" + "9" * 71 + "..." + ADVICE),
    ],
)
def test_failure_shows_the_first_group(expression: str, start: str) -> None:
    with pytest.raises(errors.GpushimError) as caught:
        require.check([("NVIDIA_REQUIRE_X", expression)], [HOST])
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, []),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=1"}, [("NVIDIA_REQUIRE_CUDA", "cuda>=1")]),
        ({"NVIDIA_REQUIRE_B": "b", "NVIDIA_REQUIRE_A": "a"}, [("NVIDIA_REQUIRE_A", "a"), ("NVIDIA_REQUIRE_B", "b")]),
        ({"NVIDIA_REQUIRE_": "x"}, [("NVIDIA_REQUIRE_", "x")]),
        ({"NVIDIA_REQUIRE_A": "", "NVIDIA_REQUIRE_B": " \t "}, []),
        ({"NVIDIA_REQUIRE_JETPACK": "x", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS": "y"}, []),
        ({"NVIDIA_REQUIRE": "x", "NVIDIA_DISABLE_REQUIRE": "1", "XNVIDIA_REQUIRE_A": "x"}, []),
    ],
)
def test_gather_collects_variables_by_name(env: dict[str, str], expected: list[tuple[str, str]]) -> None:
    assert require.gather(env, False, gate()) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("10", "10.0"), ("10.1", "10.1"), ("9.0.1", "9.0"), ("v11.4", "11.4"), ("13.0.0-rc1", "13.0"),
        ("12.2.0+build.5", "12.2"), (" 12.2 ", "12.2"), ("12.2.1.9", "12.2"),
    ],
)  # fmt: skip
def test_legacy_image_requires_its_cuda_version(version: str, expected: str) -> None:
    gathered = require.gather({"CUDA_VERSION": version, "NVIDIA_REQUIRE_Z": "z"}, True, gate())
    assert gathered == [("NVIDIA_REQUIRE_Z", "z"), ("CUDA_VERSION", f"cuda>={expected}")]


@pytest.mark.parametrize(
    "version", ["foo", "cu118", "12.x", "12..2", ".", "-1", "vv1", "\u0663", "12,2", "9" * 100, "1.\n"]
)
def test_what_is_no_version_is_no_condition(version: str) -> None:
    ignored: list[str] = []
    assert require.gather({"CUDA_VERSION": version}, True, gate(ignored)) == []
    assert [line.startswith("CUDA_VERSION is ") and line.isprintable() for line in ignored] == [True]


@pytest.mark.parametrize(
    "env",
    [
        {"NVIDIA_REQUIRE_A": "x" * (bounds.VALUE + 1)},
        {f"NVIDIA_REQUIRE_{number}": "x" for number in range(bounds.CONDITIONS + 1)},
    ],
)
def test_gather_refuses_masses(env: dict[str, str]) -> None:
    with pytest.raises(errors.GpushimError) as caught:
        require.gather(env, False, gate())
    assert caught.value.exit_code == errors.REQUEST


VERSIONS = st.lists(st.integers(0, 300).map(str) | st.sampled_from(["", "00", "007"]), min_size=1, max_size=5).map(
    ".".join
)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_versions_are_totally_ordered(first: str, second: str, third: str) -> None:
    assert require.compare(first, first) == 0
    assert require.compare(first, second) == -require.compare(second, first)
    if require.compare(first, second) <= 0 and require.compare(second, third) <= 0:
        assert require.compare(first, third) <= 0


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=4), st.lists(st.integers(0, 10**12), min_size=1, max_size=4)
)
def test_versions_compare_number_by_number(first: list[int], second: list[int]) -> None:
    width = max(len(first), len(second))
    left, right = ([*parts, *[0] * (width - len(parts))] for parts in (first, second))
    expected = (left > right) - (left < right)
    assert require.compare(".".join(map(str, first)), ".".join(map(str, second))) == expected


@given(st.text(alphabet="cudariverbn=!<>., 0129x"))
def test_any_expression_holds_fails_or_is_refused(expression: str) -> None:
    error = failure([("NVIDIA_REQUIRE_X", expression)], dict(HOST))
    assert error is None or error.exit_code in (errors.REQUIREMENT, errors.REQUEST)
