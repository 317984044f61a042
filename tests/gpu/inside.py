"""What runs in a container: compute on every GPU, or try to open a node that was not given.

inside.py add         add two vectors on each GPU and check each sum; only the driver's own library is used
inside.py count       load the driver's library and count the GPUs
inside.py open MINOR  make the node of a GPU and open it; prints "opens" or the error's name
inside.py libraries   print where the loader finds the driver's libraries
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys

COUNT = 1 << 18  # elements of each vector
CHUNK = 64  # MiB
BLOCK = 256  # threads
# As old as can be: every driver translates it for every GPU it knows.
KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 left, .param .u64 right, .param .u64 sum, .param .u32 count)
{
    .reg .pred %outside;
    .reg .b32 %block, %size, %thread, %index, %count, %x, %y;
    .reg .b64 %left, %right, %sum, %offset;
    ld.param.u64 %left, [left];
    ld.param.u64 %right, [right];
    ld.param.u64 %sum, [sum];
    ld.param.u32 %count, [count];
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %size, %thread;
    setp.ge.u32 %outside, %index, %count;
    @%outside bra done;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %left, %left, %offset;
    add.u64 %right, %right, %offset;
    add.u64 %sum, %sum, %offset;
    ld.global.u32 %x, [%left];
    ld.global.u32 %y, [%right];
    add.u32 %x, %x, %y;
    st.global.u32 [%sum], %x;
done:
    ret;
}
"""


class Driver:
    """The CUDA driver API: a call that fails ends the program with the call's name."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            sys.exit(f"{name}: CUDA error {status}")

    def number(self, name: str, *arguments: object) -> int:
        """Make a call whose first argument is where an int goes."""
        value = ctypes.c_int()
        self(name, ctypes.byref(value), *arguments)
        return value.value


def add(cuda: Driver, index: int) -> str:
    """Add two vectors on a GPU, and check the sums; returns its name."""
    device, context = cuda.number("cuDeviceGet", index), ctypes.c_void_p()
    name = ctypes.create_string_buffer(96)
    cuda("cuDeviceGetName", name, len(name), device)
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda("cuCtxSetCurrent", context)
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), KERNEL)
    cuda("cuModuleGetFunction", ctypes.byref(kernel), module, b"add")
    vector = ctypes.c_uint32 * COUNT
    left, right, result = vector(*range(COUNT)), vector(*range(7, 3 * COUNT + 7, 3)), vector()
    places = [ctypes.c_uint64() for _ in range(3)]
    for place, data in zip(places, (left, right, result)):
        cuda("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(ctypes.sizeof(data)))
        cuda("cuMemcpyHtoD_v2", place, data, ctypes.c_size_t(ctypes.sizeof(data)))
    parameters = [*places, ctypes.c_uint32(COUNT)]
    pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(each) for each in parameters))
    cuda("cuLaunchKernel", kernel, COUNT // BLOCK, 1, 1, BLOCK, 1, 1, 0, None, pointers, None)
    cuda("cuCtxSynchronize")
    cuda("cuMemcpyDtoH_v2", result, places[2], ctypes.c_size_t(ctypes.sizeof(result)))
    wrong = sum(value != 4 * i + 7 for i, value in enumerate(result))
    if wrong:
        sys.exit(f"{wrong} of {COUNT} sums are wrong")
    return name.value.decode()


def fill(cuda: Driver) -> int:
    """Take memory of the first GPU until there is none; returns MiB, of which a context has some, too."""
    context, place, taken = ctypes.c_void_p(), ctypes.c_uint64(), 0
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), cuda.number("cuDeviceGet", 0))
    cuda("cuCtxSetCurrent", context)
    while cuda.library.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(CHUNK << 20)) == 0:
        taken += CHUNK
    return taken


def opened(minor: int) -> str:
    """Make the node of a GPU and open it."""
    path = "/dev/another-gpu"
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(195, minor))
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "opens"


def libraries() -> list[str]:
    """Load the driver's main libraries by name, and tell which files those are."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"):
        ctypes.CDLL(name)
    with open("/proc/self/maps") as file:
        return sorted(set(re.findall(r"/\S*/lib(?:cuda|nvidia)[^/\s]*", file.read())))


def main(verb: str, *words: str) -> None:
    """Do what the arguments say."""
    if verb == "open":
        print(opened(int(words[0])))
    elif verb == "libraries":
        print(*libraries(), sep="\n")
    elif verb == "fill":
        print(fill(Driver()))
    else:
        cuda = Driver()
        count = cuda.number("cuDeviceGetCount")
        names = [add(cuda, index) for index in range(count)] if verb == "add" else []
        print(f"{count} GPUs", *names, sep="; ")


if __name__ == "__main__":
    main(*sys.argv[1:])
