# SPDX-License-Identifier: Apache-2.0
"""Who wrote a program, from its name, its licence and the way it is laid out.

Nobody signs device programs, so this is evidence, not proof; it changes no verdict. (Which program gpuiso may replace
or take away it knows from what it remembers, and by this alone only where it remembers nothing.) The layouts are
those of systemd's bpf-devices.c, runc's devicefilter.go, crun's ebpf.c and libnvidia-container's
ebpf.go, as they look after the kernel has translated them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.insn import Insn, Malformed, unpack

__all__ = ["GPUISO_NAME", "SYSTEMD_NAME", "Owner", "OwnerName", "owner"]

OwnerName = Literal["systemd", "runc", "crun", "libnvidia-container", "gpuiso", "foreign"]

GPUISO_NAME = "gpuiso_dev"
"""The name that gpuiso loads its programs under."""
SYSTEMD_NAME = "sd_devices"

_LDX_W, _LDX_H = op.LDX | op.MEM, op.LDX | op.MEM | 0x08
_MOV32, _MOV64 = op.ALU | op.MOV, op.ALU64 | op.MOV
_NUMBERS = (Insn(_LDX_W, 3, 1), Insn(op.ALU | op.RSH, 3, imm=16), Insn(_LDX_W, 4, 1, 4), Insn(_LDX_W, 5, 1, 8))
_PROLOGUE = (Insn(_LDX_W, 2, 1), Insn(op.ALU | op.AND, 2, imm=0xFFFF), *_NUMBERS)
_NVIDIA_PROLOGUE = (Insn(_LDX_H, 2, 1), *_NUMBERS)
_EXIT = Insn(op.JMP | op.EXIT)
_OUR_PLAIN = frozenset(
    {
        *(Insn(_LDX_W, register, 1, offset) for register, offset in ((2, 0), (4, 4), (5, 8))),
        *(Insn(_MOV64, 0, imm=answer) for answer in (0, 1)),
        _EXIT,
    }
)
_COMPARISONS = (op.JEQ, op.JNE, op.JGE, op.JLT, op.JGT, op.JLE)
_OUR_JUMPS = frozenset(
    {
        (op.JMP | op.JA, 0, 0),
        (op.JMP | op.JSET, 2, 0),
        *((op.JMP | comparison, register, 0) for comparison in _COMPARISONS for register in (4, 5)),
    }
)
_SYSTEMD_TAIL = (Insn(_MOV64, 0), Insn(op.JMP | op.JA, off=1), Insn(_MOV64, 0, imm=1), _EXIT)


@dataclass(frozen=True)
class Owner:
    """Who probably wrote a program, and what says so."""

    name: OwnerName
    evidence: str


@lru_cache(maxsize=64)
def owner(program: bytes | tuple[Insn, ...], *, name: str = "", gpl_compatible: bool | None = None) -> Owner:
    """Who wrote ``program`` (translated or not).

    ``name`` and ``gpl_compatible`` are what the kernel says of it; None where that is not known.
    """
    try:
        insns = unpack(program) if isinstance(program, bytes) else program
    except Malformed as error:
        return Owner("foreign", str(error))
    if name == GPUISO_NAME and (gpl_compatible or not all(map(_may_be_ours, insns))):
        return Owner("foreign", f"it is named {name}, but gpuiso makes no such programs")
    if name == GPUISO_NAME:
        return Owner("gpuiso", f"it is named {name}, and all that it does gpuiso's programs do")
    if name == SYSTEMD_NAME:
        return Owner("systemd", f"it is named {name}")
    if name:
        return Owner("foreign", f"it is named {name}")
    found = _by_layout(insns, gpl_compatible)
    return found or Owner("foreign", "its layout is none of those known")


def _may_be_ours(insn: Insn) -> bool:
    """Whether compile_rules writes such an instruction, or the kernel in its place (a condition turned round)."""
    return insn in _OUR_PLAIN or (insn.code, insn.dst, insn.src) in _OUR_JUMPS


def _by_layout(insns: tuple[Insn, ...], gpl_compatible: bool | None) -> Owner | None:
    if insns[: len(_NVIDIA_PROLOGUE)] == _NVIDIA_PROLOGUE:
        return Owner("libnvidia-container", "it starts with libnvidia-container's own load of the device type")
    if insns == (Insn(_MOV64, 0), _EXIT) and gpl_compatible is not False:
        return Owner("systemd", "it is the two instructions of systemd's empty strict list")
    if insns[: len(_PROLOGUE)] != _PROLOGUE:
        return None
    if insns[-len(_SYSTEMD_TAIL) :] == _SYSTEMD_TAIL and gpl_compatible is not False:
        return Owner("systemd", "its rules jump to one common end, as systemd's do")
    answers = {insn.code for insn in insns if insn.dst == 0 and insn.code in (_MOV32, _MOV64)}
    blocks = insns[-1] == _EXIT
    if blocks and answers == {_MOV32} and gpl_compatible is not True:
        return Owner("runc", f"its rules return on their own, as runc's do{_licence(gpl_compatible)}")
    if blocks and answers == {_MOV64} and gpl_compatible is not False:
        return Owner("crun", f"its rules return on their own, as crun's (and LXC's) do{_licence(gpl_compatible)}")
    return None


def _licence(gpl_compatible: bool | None) -> str:
    if gpl_compatible is None:
        return ""
    return f"; its licence is {'' if gpl_compatible else 'not '}GPL-compatible"
