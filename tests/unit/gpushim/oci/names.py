"""Names of devices for tests, and a call that may be refused."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gpushim.ground import errors
from gpushim.oci import device_names

UUIDS = [
    "GPU-11111111-1111-1111-1111-111111111111",
    "GPU-22222222-2222-2222-2222-222222222222",
    "GPU-22222222-2222-3333-2222-222222222222",
    "GPU-abcdef12-3456-7890-abcd-ef1234567890",
]
MIG = "MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
KINDS = ("nvidia.com/gpu", "runtime.nvidia.com/gpu")
PIECES = st.one_of(
    st.sampled_from(
        ["0", "1", "0-2", "0:1", "3b:00.0", "a/b=0", "nvidia.com/gpu=1", MIG, *UUIDS, *device_names.WORDS]
    ),
    st.text(alphabet="0123456789abGPUMIG-:./=", min_size=1, max_size=24),
    st.text(min_size=1),
)


def attempt(function: Any, *arguments: Any) -> tuple[Any, errors.GpushimError | None]:
    try:
        return function(*arguments), None
    except errors.GpushimError as error:
        return None, error
