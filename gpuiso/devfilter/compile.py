# SPDX-License-Identifier: Apache-2.0
"""Compile device rules to a cgroup device program.

The program is a decision tree: device type, then major, then minor by binary search, and last one
test of the access against the bits that are forbidden there. So a decision costs about as many
comparisons as the logarithm of the number of rules, the GPU's majors are met first, and the verifier
walks each instruction about once, however many rules there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from gpuiso.devfilter import insn as op
from gpuiso.devfilter.assemble import Assembler
from gpuiso.devfilter.insn import Insn
from gpuiso.policy.meaning import Meaning, Row, meaning
from gpuiso.policy.rule import ALL_ACCESS, Rule

__all__ = ["NVIDIA_MAJOR", "compile_rules"]

NVIDIA_MAJOR = 195
"""The fixed major of the NVIDIA GPUs and of nvidiactl (Documentation/admin-guide/devices.txt)."""

_TYPE_AND_ACCESS, _MAJOR, _MINOR = 2, 4, 5
_BLOCK = 1  # BPF_DEVCG_DEV_BLOCK: the one bit of the type that tells it from a character device
_LINEAR = 4  # so few items are compared one by one
_EXIT = Insn(op.JMP | op.EXIT)

_Item = tuple[int, int, Hashable]
"""First and last number, and the label they lead to."""


def compile_rules(
    rules: Sequence[Rule], *, default_allow: bool = False, first: Iterable[int] = (NVIDIA_MAJOR,)
) -> tuple[Insn, ...]:
    """The program that holds ``rules``; what no rule speaks of follows ``default_allow``.

    ``first`` are character device majors to compare before the search, the most wanted first.

    :raises TooLarge: more rules than a program can hold (many thousands).
    """
    out = Assembler()
    character = meaning(rules, "c", default_allow=default_allow)
    block = meaning(rules, "b", default_allow=default_allow)
    alike = character == block
    constant = _constant(character) if alike else None
    if constant is None:
        out.add(Insn(op.LDX | op.MEM, _TYPE_AND_ACCESS, 1, 0))
        out.add(Insn(op.LDX | op.MEM, _MAJOR, 1, 4))
        out.add(Insn(op.LDX | op.MEM, _MINOR, 1, 8))
    elif constant not in (0, ALL_ACCESS):
        out.add(Insn(op.LDX | op.MEM, _TYPE_AND_ACCESS, 1, 0))
    if not alike:
        out.add(Insn(op.JMP | op.JSET, _TYPE_AND_ACCESS, imm=_BLOCK), _entry("b", block))
    used = _tree(out, "c", character, tuple(first))
    if not alike:
        used |= _tree(out, "b", block, ())
    _leaves(out, used)
    return out.assemble()


def _constant(whole: Meaning) -> int | None:
    """The bits that are allowed for every device alike, or None where devices differ."""
    return whole.others.usual if not whole.rows and not whole.others.exceptions else None


def _leaf(bits: int) -> Hashable:
    return ("allowed", bits)


def _entry(kind: str, whole: Meaning) -> Hashable:
    """Where the search for a device type starts; one that has nothing to compare is a leaf."""
    constant = _constant(whole)
    return (kind, "entry") if constant is None else _leaf(constant)


def _tree(out: Assembler, kind: str, whole: Meaning, first: Sequence[int]) -> set[int]:
    """The search for one device type; returns the leaves it leads to."""
    constant = _constant(whole)
    if constant is not None:
        # Block devices were sent to the leaf; character devices arrive here.
        if kind == "c":
            out.goto(_leaf(constant))
        return {constant}
    others = _row_label(kind, whole.others)
    labels: dict[int, Hashable] = {major: _row_label(kind, row) for major, row in whole.rows.items()}
    urgent = [major for major in dict.fromkeys(first) if major in labels]
    out.place(_entry(kind, whole))
    for major in urgent:
        out.add(Insn(op.JMP | op.JEQ, _MAJOR, imm=major), labels[major])
    rest = _runs({major: label for major, label in labels.items() if major not in urgent})
    _search(out, _MAJOR, rest, others)
    # Rows that read alike are written once, the urgent ones near the start.
    order = [*urgent, *(major for major in sorted(labels) if major not in urgent)]
    rows = {labels[major]: whole.rows[major] for major in order}
    rows[others] = whole.others
    used: set[int] = set()
    for label, row in rows.items():
        used |= {*row.exceptions.values(), *([] if row.usual is None else [row.usual])}
        if row.exceptions:
            out.place(label)
            items = _runs({minor: _leaf(bits) for minor, bits in row.exceptions.items()})
            _search(out, _MINOR, items, others if row.usual is None else _leaf(row.usual))
    return used


def _row_label(kind: str, row: Row) -> Hashable:
    """Where a row's code is; a row without exceptions needs none and is the leaf itself."""
    if row.usual is not None and not row.exceptions:
        return _leaf(row.usual)
    return (kind, row.usual, tuple(sorted(row.exceptions.items())))


def _runs(labels: Mapping[int, Hashable]) -> list[_Item]:
    """Neighbouring numbers that lead to the same place, joined."""
    runs: list[_Item] = []
    for number, label in sorted(labels.items(), key=lambda pair: pair[0]):
        if runs and runs[-1][1] == number - 1 and runs[-1][2] == label:
            runs[-1] = (runs[-1][0], number, label)
        else:
            runs.append((number, number, label))
    return runs


def _search(out: Assembler, register: int, items: Sequence[_Item], default: Hashable) -> None:
    """Compare ``register`` with the items, which are sorted; what is none of them goes to ``default``."""
    if len(items) > _LINEAR:
        middle = len(items) // 2
        right = object()
        out.add(Insn(op.JMP | op.JGE, register, imm=items[middle][0]), right)
        _search(out, register, items[:middle], default)
        out.place(right)
        _search(out, register, items[middle:], default)
        return
    for low, high, label in items:
        if low == high:
            out.add(Insn(op.JMP | op.JEQ, register, imm=low), label)
            continue
        if low:
            out.add(Insn(op.JMP | op.JLT, register, imm=low), default)
        out.add(Insn(op.JMP | op.JLE, register, imm=high), label)
    out.goto(default)


def _leaves(out: Assembler, used: Iterable[int]) -> None:
    """The ends of the tree, one for each set of allowed bits, in the order of the sets."""
    wanted = set(used)
    partial = sorted(wanted - {0, ALL_ACCESS})
    allow, deny = _leaf(ALL_ACCESS), _leaf(0)
    for bits in partial:
        out.place(_leaf(bits))
        forbidden = (ALL_ACCESS & ~bits) << 16
        out.add(Insn(op.JMP | op.JSET, _TYPE_AND_ACCESS, imm=forbidden), deny)
        out.goto(allow)
    if partial or ALL_ACCESS in wanted:
        out.place(allow)
        out.add(Insn(op.ALU64 | op.MOV, 0, imm=1))
        out.add(_EXIT)
    if partial or 0 in wanted:
        out.place(deny)
        out.add(Insn(op.ALU64 | op.MOV, 0, imm=0))
        out.add(_EXIT)
