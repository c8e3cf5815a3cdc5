# SPDX-License-Identifier: Apache-2.0
"""A CUDA program without a framework: ``python -I -S cuda_job.py MIB [managed|endless]``.

It fills MIB of GPU memory with a pattern, prints ``ready``, and answers lines on standard input: ``sum`` with a hash of
the memory, ``step`` with the count of kernels that it has run. ``managed`` allocates managed memory too; ``endless``
starts a kernel that never ends before it is ready.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys

# Adds 1 to the first word of the memory, and turns round for ever.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 memory)
{
    .reg .u64 %a;
    .reg .u32 %v;
    ld.param.u64 %a, [memory];
    cvta.to.global.u64 %a, %a;
    ld.global.u32 %v, [%a];
    add.u32 %v, %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry spin(.param .u64 memory)
{
    .reg .u64 %a;
    .reg .u32 %v;
    .reg .pred %p;
    ld.param.u64 %a, [memory];
    cvta.to.global.u64 %a, %a;
again:
    ld.volatile.global.u32 %v, [%a];
    setp.ne.u32 %p, %v, 4294967295;
    @%p bra again;
    ret;
}
"""
PIECE = 64 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    if code != 0:
        raise SystemExit(f"CUDA error {code}")


def main() -> None:
    size = int(sys.argv[1]) << 20
    mode = sys.argv[2] if len(sys.argv) > 2 else ""
    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    memory, counter, managed = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    check(cuda.cuInit(0))
    device = ctypes.c_int()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
    check(cuda.cuMemAlloc_v2(ctypes.byref(counter), ctypes.c_size_t(4096)))
    check(cuda.cuMemsetD32_v2(counter, 0, ctypes.c_size_t(1024)))
    for start in range(0, size, PIECE):
        words = min(PIECE, size - start) // 4
        check(cuda.cuMemsetD32_v2(ctypes.c_uint64(memory.value + start), 0x9E3779B1 * (start + 1) & 0xFFFFFFFF, words))
    if mode == "managed":
        check(cuda.cuMemAllocManaged(ctypes.byref(managed), ctypes.c_size_t(1 << 20), 1))
        check(cuda.cuMemsetD32_v2(managed, 7, ctypes.c_size_t(1024)))
    check(cuda.cuCtxSynchronize())

    def launch(name: bytes) -> None:
        function = ctypes.c_void_p()
        check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name))
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(counter), ctypes.c_void_p))
        check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))

    if mode == "endless":
        launch(b"spin")
    print("ready", flush=True)
    host = ctypes.create_string_buffer(min(PIECE, size))
    for line in sys.stdin:
        if line == "sum\n":
            digest = hashlib.blake2b(digest_size=16)
            for start in range(0, size, PIECE):
                count = min(PIECE, size - start)
                check(cuda.cuMemcpyDtoH_v2(host, ctypes.c_uint64(memory.value + start), ctypes.c_size_t(count)))
                digest.update(memoryview(host)[:count])
            print(digest.hexdigest(), flush=True)
        else:
            launch(b"add")
            value = ctypes.c_uint32()
            check(cuda.cuMemcpyDtoH_v2(ctypes.byref(value), counter, ctypes.c_size_t(4)))
            print(value.value, flush=True)


if __name__ == "__main__":
    main()
