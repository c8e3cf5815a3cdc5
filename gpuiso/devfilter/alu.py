# SPDX-License-Identifier: Apache-2.0
"""The arithmetic and the comparisons of eBPF on plain numbers.

Registers are unsigned 64-bit; a 32-bit operation uses the low halves and clears the high half of
its result. Division by zero gives 0 and modulo by zero leaves the operand, as the kernel defines
(Documentation/bpf/standardization/instruction-set.rst).
"""

from __future__ import annotations

from collections.abc import Callable

from gpuiso.devfilter import insn as op

__all__ = ["arithmetic", "byteswap", "compare", "signed"]


def signed(value: int, bits: int) -> int:
    """The low ``bits`` of ``value`` read as two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _divide(a: int, b: int) -> int:
    """Division that rounds towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _div(a: int, b: int, bits: int, off: int) -> int:
    if b == 0:
        return 0
    return _divide(signed(a, bits), signed(b, bits)) if off else a // b


def _mod(a: int, b: int, bits: int, off: int) -> int:
    if b == 0:
        return a
    if not off:
        return a % b
    dividend, divisor = signed(a, bits), signed(b, bits)
    return dividend - divisor * _divide(dividend, divisor)


_ARITHMETIC: dict[int, Callable[[int, int, int, int], int]] = {
    op.ADD: lambda a, b, bits, off: a + b,
    op.SUB: lambda a, b, bits, off: a - b,
    op.MUL: lambda a, b, bits, off: a * b,
    op.DIV: _div,
    op.OR: lambda a, b, bits, off: a | b,
    op.AND: lambda a, b, bits, off: a & b,
    op.LSH: lambda a, b, bits, off: a << (b & (bits - 1)),
    op.RSH: lambda a, b, bits, off: a >> (b & (bits - 1)),
    op.NEG: lambda a, b, bits, off: -a,
    op.MOD: _mod,
    op.XOR: lambda a, b, bits, off: a ^ b,
    op.MOV: lambda a, b, bits, off: signed(b, off) if off else b,
    op.ARSH: lambda a, b, bits, off: signed(a, bits) >> (b & (bits - 1)),
}


def arithmetic(operation: int, a: int, b: int, bits: int, off: int = 0) -> int:
    """``a OP b`` on ``bits`` (32 or 64). ``off`` is the field that makes DIV, MOD and MOV signed.

    :raises KeyError: ``operation`` is none of the arithmetic ones (byteswap is apart).
    """
    whole = (1 << bits) - 1
    return _ARITHMETIC[operation](a & whole, b & whole, bits, off) & whole


def byteswap(value: int, width: int, *, swap: bool) -> int:
    """The low ``width`` bits (16, 32, 64), their bytes reversed if ``swap``."""
    size = width // 8
    low = (value & ((1 << width) - 1)).to_bytes(size, "little")
    return int.from_bytes(low, "big" if swap else "little")


_UNSIGNED: dict[int, Callable[[int, int], bool]] = {
    op.JEQ: lambda a, b: a == b,
    op.JNE: lambda a, b: a != b,
    op.JGT: lambda a, b: a > b,
    op.JGE: lambda a, b: a >= b,
    op.JLT: lambda a, b: a < b,
    op.JLE: lambda a, b: a <= b,
    op.JSET: lambda a, b: bool(a & b),
}
_SIGNED: dict[int, Callable[[int, int], bool]] = {
    op.JSGT: lambda a, b: a > b,
    op.JSGE: lambda a, b: a >= b,
    op.JSLT: lambda a, b: a < b,
    op.JSLE: lambda a, b: a <= b,
}


def compare(operation: int, a: int, b: int, bits: int) -> bool:
    """Whether the jump is taken. :raises KeyError: ``operation`` is no conditional jump."""
    if operation in _SIGNED:
        return _SIGNED[operation](signed(a, bits), signed(b, bits))
    whole = (1 << bits) - 1
    return _UNSIGNED[operation](a & whole, b & whole)
