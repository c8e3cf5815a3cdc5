# SPDX-License-Identifier: Apache-2.0
"""The eBPF machine: runs a program until it ends, or until a jump depends on something not known.

Both ways of running a program are built on it: with every input a number (interpret) and with the
device numbers left open (explore). The translated program that the kernel shows differs from the
loaded one in a few ways, all handled here: map descriptors became map ids, calls became distances
to kernel functions, lookups in array and hash maps were inlined, dead code was removed, and a call of
a function of the program itself keeps its target in ``off`` (kernel/bpf/verifier.c, jit_subprogs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.alu import arithmetic, byteswap, compare
from gpuiso.devfilter.helpers import HELPER_NAMES
from gpuiso.devfilter.insn import Insn
from gpuiso.devfilter.memory import Memory
from gpuiso.devfilter.values import (
    HelperNames,
    Maps,
    Pointer,
    Unknown,
    Value,
    Variable,
    expression,
)

__all__ = ["Branch", "Join", "Machine", "Return", "State", "Stuck"]

_M32, _M64 = (1 << 32) - 1, (1 << 64) - 1
_MAX_FRAMES = 8
_ARRAY_MAP = 2
# What the offset field may say in arithmetic: a signed division, the width of a sign extension. The kernel
# has more of its own (the address of a per-CPU variable), which no number stands for.
_PLAIN = frozenset({0})
_OFFSETS = {op.DIV: frozenset({0, 1}), op.MOD: frozenset({0, 1}), op.MOV: frozenset({0, 8, 16, 32})}
_OTHER_WAYS_OUT = {
    "bpf_tail_call": "it goes on in another program",
    "bpf_set_retval": "it sets the result of the system call itself",
}
_UNSET = Unknown("a register was read before it was written")
_CLOBBERED = Unknown("a register does not survive a call")


@dataclass(slots=True)
class State:
    """Where a run stands. ``regs`` are r0 and on; ``frames`` the callers, as (pc, r6 to r9)."""

    pc: int
    regs: list[Value]
    memory: Memory
    frames: tuple[tuple[int, tuple[Value, ...]], ...] = ()

    @classmethod
    def start(cls) -> State:
        regs: list[Value] = [_UNSET] * op.REGISTERS
        regs[1] = Pointer("context", None, 0)
        regs[10] = Pointer("stack", 0, 0)
        return cls(0, regs, Memory())

    def fork(self, pc: int) -> State:
        """A copy that goes on at ``pc``."""
        return State(pc, self.regs.copy(), self.memory.copy(), self.frames)


@dataclass(frozen=True, slots=True)
class Return:
    """The program ended with ``value`` in r0 after the instruction ``pc``."""

    value: Value
    pc: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A jump whose outcome is open: go on at ``taken`` if ``left OP right``, else at ``otherwise``."""

    operation: int
    left: Value
    right: Value
    bits: int
    taken: int
    otherwise: int
    state: State


@dataclass(frozen=True, slots=True)
class Join:
    """The run reached one of the instructions it was to stop at."""

    state: State


@dataclass(frozen=True, slots=True)
class Stuck:
    """The run cannot go on, and why."""

    why: str


@dataclass(slots=True)
class Machine:
    """One program with one set of inputs. ``steps_left`` bounds all runs of it together."""

    program: Sequence[Insn]
    access_type: int
    major: Value
    minor: Value
    maps: Maps | None = None
    helpers: HelperNames | None = None
    steps_left: int = 1_000_000
    stops: frozenset[int] = field(default_factory=frozenset)

    def run(self, state: State) -> Return | Branch | Join | Stuck:
        """Run ``state`` (which is consumed) to the next event."""
        program, regs = self.program, state.regs
        first = True
        while True:
            pc = state.pc
            if not first and pc in self.stops:
                return Join(state)
            first = False
            if not 0 <= pc < len(program):
                return Stuck(f"it runs off its end at instruction {pc}")
            self.steps_left -= 1
            if self.steps_left < 0:
                return Stuck("it was still running when the steps granted to it were used up")
            insn = program[pc]
            state.pc = pc + 1
            kind = insn.code & 7
            if kind in (op.ALU, op.ALU64):
                regs[insn.dst] = self._alu(insn, regs)
            elif kind in (op.JMP, op.JMP32):
                event = self._jump(insn, pc, state)
                if event is not None:
                    return event
                regs = state.regs
            else:
                why = self._memory(insn, pc, state)
                if why is not None:
                    return Stuck(why)

    def _alu(self, insn: Insn, regs: list[Value]) -> Value:
        operation, bits = insn.code & 0xF0, 64 if insn.code & 7 == op.ALU64 else 32
        left = regs[insn.dst]
        if operation == op.END:
            return self._end(insn, left, bits)
        if operation > op.END or insn.off not in _OFFSETS.get(operation, _PLAIN):
            return Unknown(f"opcode {insn.code:#04x} is not known")
        right: Value = regs[insn.src] if insn.code & op.REG else insn.imm & _M64
        if type(left) is int and type(right) is int:
            return arithmetic(operation, left, right, bits, insn.off)
        if operation == op.MOV:
            return _move(right, bits, insn.off)
        if operation == op.XOR and left == right and not isinstance(left, Unknown):
            return 0
        for value in (left, right):
            if isinstance(value, Unknown):
                return value
        if isinstance(left, Pointer) or isinstance(right, Pointer):
            return _pointer_arithmetic(operation, left, right, bits)
        return expression(operation, left, right, bits, insn.off)

    @staticmethod
    def _end(insn: Insn, value: Value, bits: int) -> Value:
        if not isinstance(value, int):
            return value if isinstance(value, Unknown) else Unknown("a device number's bytes are swapped")
        # In ALU the source bit asks for big endian; in ALU64 the swap is unconditional.
        return byteswap(value, insn.imm, swap=bits == 64 or bool(insn.code & op.REG))

    def _jump(self, insn: Insn, pc: int, state: State) -> Return | Branch | Stuck | None:
        operation, bits = insn.code & 0xF0, 64 if insn.code & 7 == op.JMP else 32
        regs = state.regs
        if operation == op.JA and not insn.code & op.REG:
            state.pc += insn.off if bits == 64 else insn.imm
            return None
        if operation == op.EXIT:
            if not state.frames:
                return Return(regs[0], pc)
            state.pc, saved = state.frames[-1]
            state.frames = state.frames[:-1]
            regs[1:6] = [_CLOBBERED] * 5
            regs[6:10] = saved
            regs[10] = Pointer("stack", len(state.frames), 0)
            return None
        if operation == op.CALL:
            return self._call(insn, state)
        if operation >= op.JCOND or (insn.code == op.JMP | op.JA | op.REG):
            return Stuck(f"opcode {insn.code:#04x} is not known")
        left = regs[insn.dst]
        right: Value = regs[insn.src] if insn.code & op.REG else insn.imm & _M64
        if type(left) is int and type(right) is int:
            if compare(operation, left, right, bits):
                state.pc += insn.off
            return None
        decided = _compare_pointers(operation, left, right)
        if decided is None:
            return Branch(operation, left, right, bits, state.pc + insn.off, state.pc, state)
        if decided:
            state.pc += insn.off
        return None

    def _call(self, insn: Insn, state: State) -> Stuck | None:
        regs = state.regs
        if insn.src == op.PSEUDO_CALL:
            if len(state.frames) == _MAX_FRAMES:
                return Stuck("its functions call each other deeper than the kernel allows")
            state.frames = (*state.frames, (state.pc, tuple(regs[6:10])))
            state.pc += insn.off or insn.imm
            regs[6:10] = [_UNSET] * 4
            regs[10] = Pointer("stack", len(state.frames), 0)
            return None
        name = HELPER_NAMES.get(insn.imm) if self.helpers is None else self.helpers(insn.imm)
        if insn.code & op.REG or name is None:
            return Stuck("it calls a function that could not be named")
        if name in _OTHER_WAYS_OUT:
            return Stuck(_OTHER_WAYS_OUT[name])
        regs[0] = self._helper(name, regs, state.memory)
        regs[1:6] = [_CLOBBERED] * 5
        return None

    def _helper(self, name: str, regs: list[Value], memory: Memory) -> Value:
        if name.endswith("map_lookup_elem"):
            return self._lookup(name, regs[1], regs[2], memory)
        for value in regs[1:6]:
            if isinstance(value, Pointer) and value.space == "stack":
                # It may write there: what the stack holds is no longer known.
                memory.forget(f"{name} may have written to the stack")
        return Unknown(f"it depends on {name}")

    def _lookup(self, name: str, handle: Value, at: Value, memory: Memory) -> Value:
        if not isinstance(handle, Pointer) or not isinstance(handle.where, int):
            return Unknown("it looks something up in a map that could not be told")
        view = None if self.maps is None else self.maps(handle.where)
        if view is None:
            return Unknown(f"it asks map {handle.where}, which could not be read")
        key = memory.read_bytes(at, view.key_size)
        if key is None:
            return Unknown(f"the key it looks up in map {handle.where} could not be told")
        if view.lookup(key) is None:
            return 0
        # __htab_map_lookup_elem is what an inlined lookup calls: it gives the entry, not the value.
        return Pointer("entry" if name.startswith("__htab") else "value", (handle.where, key), 0)

    def _memory(self, insn: Insn, pc: int, state: State) -> str | None:
        kind, mode = insn.code & 7, insn.code & 0xE0
        regs = state.regs
        if insn.code == op.LD_IMM64:
            state.pc = pc + 2
            regs[insn.dst] = _wide(insn, self.program[pc + 1])
            return None
        if insn.code == op.NOSPEC:
            return None
        size = op.SIZES[insn.code & 0x18]
        if kind == op.LDX and mode in (op.MEM, op.MEMSX):
            value = self._load(regs[insn.src], insn.off, size, state.memory)
            if mode == op.MEMSX:
                value = _move(value, 64, size * 8)
            regs[insn.dst] = value
        elif kind in (op.ST, op.STX) and mode == op.MEM:
            stored: Value = regs[insn.src] if kind == op.STX else insn.imm & _M64
            state.memory.store(regs[insn.dst], insn.off, size, stored)
        elif kind == op.STX and mode == op.ATOMIC:
            self._atomic(insn, size, state)
        else:
            return f"opcode {insn.code:#04x} is not known"
        return None

    @staticmethod
    def _atomic(insn: Insn, size: int, state: State) -> None:
        """Counters and the like: their results are not followed, only forgotten."""
        why = Unknown("it depends on an atomic operation")
        state.memory.store(state.regs[insn.dst], insn.off, size, why)
        if insn.imm & 0x01:
            state.regs[0 if insn.imm & 0xF0 == 0xF0 else insn.src] = why

    def _load(self, base: Value, offset: int, size: int, memory: Memory) -> Value:
        if not isinstance(base, Pointer):
            return base if isinstance(base, Unknown) else Unknown("it reads from an address that is a number")
        at = base.offset + offset
        if base.space == "context":
            return self._context(at, size)
        if base.space == "stack":
            return memory.load(base, offset, size)
        value = self._map_bytes(base)
        if isinstance(value, Unknown):
            return value
        if (base.where, base.space) in memory.dirty:
            return Unknown("it reads a map value that it wrote to")
        start = at - base.offset // len(value) * len(value) if base.space == "array" else at
        if not 0 <= start <= len(value) - size:
            return Unknown("it reads outside a map value")
        return int.from_bytes(value[start : start + size], "little")

    def _map_bytes(self, base: Pointer) -> bytes | Unknown:
        """The value a pointer points into; for an array's value area, the element at its offset."""
        if base.space in ("map", "entry") or base.where is None:
            return Unknown("it reads from inside a kernel object")
        map_id, key = base.where if isinstance(base.where, tuple) else (base.where, b"\0\0\0\0")
        view = None if self.maps is None else self.maps(map_id)
        if view is None:
            return Unknown(f"it reads map {map_id}, which could not be read")
        if base.space == "array":
            if view.type != _ARRAY_MAP:
                return Unknown(f"it reads map {map_id}, whose kind is not followed")
            stride = (view.value_size + 7) // 8 * 8
            key = (base.offset // stride).to_bytes(4, "little")
            value = view.lookup(key)
            return Unknown(f"map {map_id} has no such element") if value is None else value.ljust(stride, b"\0")
        value = view.lookup(key)
        return Unknown(f"map {map_id} changed while it was read") if value is None else value

    def _context(self, at: int, size: int) -> Value:
        if at >= 0 and at + size <= 4:
            return self.access_type >> (8 * at) & ((1 << 8 * size) - 1)
        if size == 4 and at in (4, 8):
            return self.major if at == 4 else self.minor
        return Unknown(f"it reads {size} bytes at {at} of the context, where nothing is defined")


def _move(value: Value, bits: int, off: int) -> Value:
    if isinstance(value, int):
        return arithmetic(op.MOV, 0, value, bits, off)
    if isinstance(value, Unknown) or (bits == 64 and not off):
        return value
    if isinstance(value, Variable) and off in (0, 32) and bits == 32:
        return value
    if isinstance(value, Pointer):
        return Unknown("it uses a pointer as a number")
    return expression(op.MOV, 0, value, bits, off)


def _wide(insn: Insn, high: Insn) -> Value:
    if insn.src == 0:
        return (insn.imm & _M32) | (high.imm & _M32) << 32
    if insn.src == op.PSEUDO_MAP_FD:
        return Pointer("map", insn.imm, 0)
    if insn.src == op.PSEUDO_MAP_VALUE:
        return Pointer("value", (insn.imm, b"\0\0\0\0"), high.imm & _M32)
    return Unknown("it uses the address of a kernel symbol")


def _pointer_arithmetic(operation: int, left: Value, right: Value, bits: int) -> Value:
    if isinstance(right, Pointer) and operation == op.ADD:
        left, right = right, left
    if not isinstance(left, Pointer) or not isinstance(right, int) or bits != 64:
        return Unknown("it computes with a pointer in a way that is not followed")
    if operation not in (op.ADD, op.SUB):
        return Unknown("it computes with a pointer in a way that is not followed")
    step = right - (1 << 64) if right >> 63 else right
    # No loaded program may compute with these: the kernel's inlined lookups do, to reach the values.
    if left.space == "map":
        return Pointer("array", left.where, 0)
    if left.space == "entry":
        return Pointer("value", left.where, 0)
    return Pointer(left.space, left.where, left.offset + (step if operation == op.ADD else -step))


def _compare_pointers(operation: int, left: Value, right: Value) -> bool | None:
    """Pointers are never null here; anything else about them is open."""
    if isinstance(left, Pointer) and right == 0:
        return {op.JEQ: False, op.JNE: True, op.JGT: True, op.JLE: False}.get(operation)
    return None
