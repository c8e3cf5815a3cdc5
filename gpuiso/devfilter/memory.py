# SPDX-License-Identifier: Apache-2.0
"""The stack of a running program, byte by byte, so that values can be spilled and read back in parts."""

from __future__ import annotations

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.values import Part, Pointer, Unknown, Value, Variable, expression

__all__ = ["Memory"]

_UNWRITTEN = Unknown("it reads stack that it did not write")


class Memory:
    """Stack bytes of all frames by (frame, offset); ``dirty`` are the map values written to.

    Maps are shared with others, so what was written to them is not kept: it is only remembered
    that their contents are no longer what a reader would show.
    """

    __slots__ = ("_bytes", "_lost", "dirty")

    def __init__(self) -> None:
        self._bytes: dict[tuple[int, int], int | Part] = {}
        self._lost = _UNWRITTEN
        self.dirty: frozenset[tuple[object, str]] = frozenset()

    def copy(self) -> Memory:
        other = Memory()
        other._bytes = self._bytes.copy()
        other._lost = self._lost
        other.dirty = self.dirty
        return other

    def key(self) -> object:
        """Equal for equal contents; hashable."""
        return (frozenset(self._bytes.items()), self._lost, self.dirty) if self._bytes or self.dirty else None

    def forget(self, why: str) -> None:
        """Somebody else may have written anywhere on the stack."""
        self._bytes.clear()
        self._lost = Unknown(why)

    def store(self, base: Value, offset: int, size: int, value: Value) -> None:
        if not isinstance(base, Pointer):
            self.forget("it wrote to an address that could not be told")
            return
        if base.space != "stack" or not isinstance(base.where, int):
            self.dirty |= {(base.where, base.space)}
            return
        at = base.offset + offset
        for index in range(size):
            byte = value >> (8 * index) & 0xFF if isinstance(value, int) else Part(value, index, size)
            self._bytes[base.where, at + index] = byte

    def load(self, base: Pointer, offset: int, size: int) -> Value:
        at = base.offset + offset
        frame = base.where if isinstance(base.where, int) else 0
        cells = [self._bytes.get((frame, at + index)) for index in range(size)]
        number = 0
        for index, cell in enumerate(cells):
            if isinstance(cell, int):
                number |= cell << (8 * index)
                continue
            if cell is None:
                return self._lost
            whole = all(isinstance(c, Part) and c == Part(cell.value, i, size) for i, c in enumerate(cells))
            if whole:
                # A store of fewer than 8 bytes keeps only the low part of what was in the register.
                return cell.value if size == 8 else _low(cell.value, size)
            return Unknown("it reads back a part of a stored value")
        return number

    def read_bytes(self, base: Value, size: int) -> bytes | None:
        """``size`` bytes of stack, or None where they are not all plain numbers."""
        if not isinstance(base, Pointer) or base.space != "stack" or not isinstance(base.where, int):
            return None
        cells = [self._bytes.get((base.where, base.offset + index)) for index in range(size)]
        numbers = [cell for cell in cells if isinstance(cell, int)]
        return bytes(numbers) if len(numbers) == size else None


def _low(value: Value, size: int) -> Value:
    if isinstance(value, (Unknown, Variable)) and size == 4:
        return value
    if isinstance(value, (Unknown, Pointer)):
        return Unknown("it uses a part of a pointer")
    return expression(op.AND, value, (1 << 8 * size) - 1, 64)
