# SPDX-License-Identifier: Apache-2.0
"""A program that allows some devices first and is another program for the rest, instruction for instruction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn, Malformed, pack, unpack
from gpuiso.policy.rule import ALL_ACCESS, DeviceType

__all__ = ["widen"]

_LDX_W = op.LDX | op.MEM
_TYPES = {"b": 1, "c": 2}  # BPF_DEVCG_DEV_BLOCK and _CHAR, include/uapi/linux/bpf.h

Allowed = tuple[DeviceType, int, int, int]
"""Device type, major, minor, access bits."""


def widen(program: bytes, allowed: Sequence[Allowed]) -> bytes:
    """``program`` (as a translated dump shows it) behind checks that allow these devices.

    An access with a bit beyond those allowed is left to ``program``, and so is any other device.

    :raises Malformed: it uses maps or calls, of which a dump holds addresses, so it cannot be loaded again.
    """
    insns = unpack(program)
    if any(each.code in (op.JMP | op.CALL, op.NOSPEC) or (each.code == op.LD_IMM64 and each.src) for each in insns):
        raise Malformed("it uses maps or calls functions, so it cannot be loaded again from what the kernel shows")
    return pack([*(insn for device in allowed for insn in _allow(*device)), *insns])


def _allow(device: DeviceType, major: int, minor: int, bits: int) -> Iterator[Insn]:
    """Return 1 for this device and these accesses, go on otherwise; r1 stays the context.

    ``struct bpf_cgroup_dev_ctx``: access_type (access in the high half, type in the low), major, minor.
    """
    beyond = ALL_ACCESS & ~bits
    checks: list[tuple[int, int, int]] = [(0, 0xFFFF, _TYPES[device])]
    if beyond:
        checks.append((0, beyond << 16, 0))
    checks += [(4, 0, major), (8, 0, minor)]
    body: list[tuple[Insn, ...]] = []
    for offset, keep, value in checks:
        masked = (Insn(op.ALU | op.AND, 2, imm=keep),) if keep else ()
        body.append((Insn(_LDX_W, 2, 1, offset), *masked, Insn(op.JMP | op.JNE, 2, imm=value)))
    flat = [insn for part in body for insn in part]
    end = len(flat) + 2  # behind the two instructions that answer
    for index, insn in enumerate(flat):
        yield insn._replace(off=end - index - 1) if insn.code == op.JMP | op.JNE else insn
    yield Insn(op.ALU64 | op.MOV, 0, imm=1)
    yield Insn(op.JMP | op.EXIT)
