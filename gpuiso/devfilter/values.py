# SPDX-License-Identifier: Apache-2.0
"""What a register can hold while a device program is run: numbers, inputs, pointers, the unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpuiso.host.protocol import BpfMap

__all__ = [
    "Expression",
    "HelperNames",
    "Maps",
    "Part",
    "Pointer",
    "Space",
    "Unknown",
    "Value",
    "Variable",
    "expression",
]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that cannot be had, and why: what depends on it has no verdict."""

    why: str


@dataclass(frozen=True, slots=True)
class Variable:
    """One of the two inputs that recovery leaves open, an unsigned 32-bit number."""

    name: Literal["major", "minor"]


@dataclass(frozen=True, slots=True)
class Expression:
    """Arithmetic on an input that was not carried out yet; fields as alu.arithmetic takes them.

    ``size`` is the number of operations in it.
    """

    operation: int
    left: Value
    right: Value
    bits: int
    off: int
    size: int


Space = Literal["context", "stack", "map", "array", "entry", "value"]


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address, as a place and a byte offset.

    ``where`` says which: the frame number of a stack, the id of a map, ``(id, key)`` of a map's
    entry or value. "array" is the value area of an array map, "entry" the kernel's own hash entry:
    both appear only where the kernel inlined a lookup into the translated program.
    """

    space: Space
    where: int | tuple[int, bytes] | None
    offset: int


class Part(NamedTuple):
    """One byte of a stored value that is not a number."""

    value: Value
    byte: int
    size: int


Value = int | Unknown | Variable | Expression | Pointer


_LARGEST = 64


def expression(operation: int, left: Value, right: Value, bits: int, off: int = 0) -> Value:
    """An expression, or Unknown where it would be too large to work with."""
    size = 1 + sum(part.size for part in (left, right) if isinstance(part, Expression))
    if size > _LARGEST:
        return Unknown("it computes more with device numbers than is followed")
    return Expression(operation, left, right, bits, off, size)


Maps = Callable[[int], BpfMap | None]
"""Gives the map of an id (of a descriptor number in a program not yet loaded), or None: unreadable."""

HelperNames = Callable[[int], str | None]
"""Names the function that a CALL's immediate stands for.

In a loaded program the immediate is the distance of the function from the kernel symbol
``__bpf_call_base``, or 0 where the kernel hides its addresses; a caller with /proc/kallsyms can tell.
"""
