# SPDX-License-Identifier: Apache-2.0
"""Which devices a comparison holds for, where it depends on their numbers."""

from __future__ import annotations

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.alu import arithmetic, compare
from gpuiso.devfilter.spans import ALL_MAJORS, ALL_MINORS, Region, Span, Spans, intersect, union
from gpuiso.devfilter.values import Expression, Value, Variable

__all__ = ["split"]

# Comparisons that cannot be inverted are tried number by number, up to this many.
_MAX_TRIED = 65_536


def split(region: Region, operation: int, left: Value, right: Value, bits: int) -> tuple[Region | None, int]:
    """Take out of ``region`` the devices for which ``left OP right`` holds.

    Gives them, or None if that is too much work (``region`` is whole then), and what the work was, in
    steps of about a machine's. ``left`` and ``right`` are numbers, variables and expressions of them.
    """
    solved = _solve(operation, left, right, bits)
    if solved is not None:
        name, spans = solved
        if name == "major":
            return region.take_majors(intersect(spans, (ALL_MAJORS,))), 1
        return region.take_minors(intersect(spans, (ALL_MINORS,))), len(region.rows)

    def holds(major: int, minor: int) -> bool:
        return compare(operation, _value(left, major, minor), _value(right, major, minor), bits)

    names = _inputs(left) | _inputs(right)
    if names == {"major"}:
        majors = [number for low, high, _ in region.rows for number in range(low, high + 1)]
        return region.take_majors(union((n, n) for n in majors if holds(n, 0))), len(majors)
    if names == {"minor"}:
        held = union(span for _, _, minors in region.rows for span in minors)
        count = sum(high - low + 1 for low, high in held)
        if count > _MAX_TRIED:
            return None, 1
        minors = (number for low, high in held for number in range(low, high + 1))
        return region.take_minors(union((n, n) for n in minors if holds(0, n))), count + len(region.rows)
    count = region.size()
    if count > _MAX_TRIED:
        return None, 1
    pairs = [
        (major, minor)
        for low, high, spans in region.rows
        for major in range(low, high + 1)
        for first, last in spans
        for minor in range(first, last + 1)
        if holds(major, minor)
    ]
    return region.take_pairs(pairs), count


def _inputs(value: Value) -> set[str]:
    if isinstance(value, Variable):
        return {value.name}
    if isinstance(value, Expression):
        return _inputs(value.left) | _inputs(value.right)
    return set()


def _value(value: Value, major: int, minor: int) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, Variable):
        return major if value.name == "major" else minor
    if isinstance(value, Expression):
        return arithmetic(
            value.operation,
            _value(value.left, major, minor),
            _value(value.right, major, minor),
            value.bits,
            value.off,
        )
    raise TypeError(f"{value!r} has no number")


_MIRRORED = {
    op.JEQ: op.JEQ,
    op.JNE: op.JNE,
    op.JGT: op.JLT,
    op.JLT: op.JGT,
    op.JGE: op.JLE,
    op.JLE: op.JGE,
    op.JSGT: op.JSLT,
    op.JSLT: op.JSGT,
    op.JSGE: op.JSLE,
    op.JSLE: op.JSGE,
}


def _solve(operation: int, left: Value, right: Value, bits: int) -> tuple[str, Spans] | None:
    """The input and its values for which ``left OP right`` holds, for ``input + constant OP constant``."""
    if isinstance(left, int):
        if operation not in _MIRRORED:
            return None
        operation, left, right = _MIRRORED[operation], right, left
    if not isinstance(right, int) or operation not in _MIRRORED:
        return None
    added, width = 0, bits
    if isinstance(left, Expression) and left.operation in (op.ADD, op.SUB) and isinstance(left.right, int):
        added = left.right if left.operation == op.ADD else -left.right
        width, left = min(bits, left.bits), left.left
    if not isinstance(left, Variable):
        return None
    # A sum of 32 bits is compared in 64 with a zero high half.
    sums = intersect(_solutions(operation, right, bits), ((0, (1 << width) - 1),))
    return left.name, _shift(sums, -added, width)


def _solutions(operation: int, constant: int, bits: int) -> Spans:
    """The unsigned numbers x of ``bits`` for which ``x OP constant`` holds."""
    top = (1 << bits) - 1
    constant &= top
    half = 1 << (bits - 1)
    if operation in (op.JSGT, op.JSGE, op.JSLT, op.JSLE):
        # Flipping the sign bit turns the signed order into the unsigned one.
        unsigned = {op.JSGT: op.JGT, op.JSGE: op.JGE, op.JSLT: op.JLT, op.JSLE: op.JLE}[operation]
        return _shift(_solutions(unsigned, constant ^ half, bits), half, bits)
    ranges: dict[int, list[Span]] = {
        op.JEQ: [(constant, constant)],
        op.JNE: [(0, constant - 1), (constant + 1, top)],
        op.JGT: [(constant + 1, top)],
        op.JGE: [(constant, top)],
        op.JLT: [(0, constant - 1)],
        op.JLE: [(0, constant)],
    }
    return union((low, high) for low, high in ranges[operation] if low <= high)


def _shift(spans: Spans, by: int, bits: int) -> Spans:
    """Add ``by`` to every number, modulo 2 to the power of ``bits``."""
    size = 1 << bits
    moved: list[Span] = []
    for low, high in spans:
        first = (low + by) % size
        last = first + (high - low)
        moved.append((first, min(last, size - 1)))
        if last >= size:
            moved.append((0, last - size))
    return union(moved)
