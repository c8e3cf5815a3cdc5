# SPDX-License-Identifier: Apache-2.0
"""The map for people: one line that sums up, the table, and a sentence for each cell that stands out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuiso.cli.render.plain import one_line, plain
from gpuiso.cli.render.unexamined import lines_by_reason
from gpuiso.doctor.map.model import Cell, Column, GpuMap, State, Stray, Workload

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["MEANINGS", "SYMBOLS", "WORDS", "headline", "held", "memory", "print_map", "remarkable"]

SYMBOLS: dict[State, str] = {
    "lost": "✗",
    "leak": "!",
    "kept": "●",
    "unknown": "?",
    "use": "●",
    "ready": "○",
    "may": "○",
    "closed": "·",
}
WORDS: dict[State, str] = {
    "lost": "LOST",
    "leak": "LEAK",
    "kept": "kept",
    "unknown": "",
    "use": "use",
    "ready": "sel",
    "may": "may",
    "closed": "",
}
MEANINGS: dict[State, str] = {
    "lost": "selected or given, but it may not be opened",
    "leak": "it may be opened, though the workload selects others",
    "kept": "it may not be opened any more, but is still open",
    "unknown": "it cannot be known whether it may be opened",
    "use": "open, or holds GPU memory",
    "ready": "selected, may be opened, not open",
    "may": "may be opened, nothing selects",
    "closed": "may not be opened",
}
_ASCII = str.maketrans("✗●○·", "x*o-")
_STYLES: dict[State, str] = {
    "lost": "bold red",
    "leak": "bold yellow",
    "kept": "magenta",
    "unknown": "yellow",
    "use": "green",
    "ready": "cyan",
    "may": "",
    "closed": "dim",
}
_NAME = 24  # columns that a workload's name has at the least
_CELL = 6
_SHOWN = 40  # sentences; a page or --json has them all


def headline(found: GpuMap) -> str:
    """The map in one line."""
    where = one_line(found.machine.host.name)
    if not found.columns:
        return f"no GPU on {where}"
    gpus = f"{_count(len(found.columns), _noun(found.columns))} on {where}"
    if found.blind is not None:
        return f"no process can be looked at ({found.blind}): {gpus}"
    leaks, lost = found.counts["leak"], found.counts["lost"]
    parts = [
        _count(leaks, "isolation leak") if leaks else "no isolation leak",
        _count(lost, "lost GPU") if lost else "no lost GPU",
    ]
    return f"{', '.join(parts)}: {_count(len(found.workloads), 'workload')}, {gpus}"


def remarkable(found: GpuMap) -> Iterator[tuple[State, Workload, Sequence[Column], str]]:
    """What is to be said about cells that stand out, the gravest first; equal sentences of a workload once."""
    states: tuple[State, ...] = ("lost", "leak", "kept", "unknown")
    for state in states:
        for workload in found.workloads:
            said: dict[str, list[Column]] = {}
            for column, cell in zip(found.columns, workload.cells, strict=True):
                if cell.state == state and cell.says is not None:
                    said.setdefault(cell.says, []).append(column)
            for sentence, columns in said.items():
                yield state, workload, columns, sentence


def memory(size: int) -> str:
    """Bytes in at most six characters: ``141.2G``, ``980M``."""
    if size < 1 << 30:
        return f"{size >> 20}M"
    return f"{size / (1 << 30):.1f}G"


def held(stray: Stray) -> str:
    """How much memory nobody can be found for."""
    return "memory" if stray.memory is None else memory(stray.memory)


def print_map(console: Console, found: GpuMap) -> None:
    """The whole map."""
    from rich.text import Text

    style = (
        "bold yellow"
        if found.blind
        else "bold red"
        if found.counts["lost"]
        else "bold yellow"
        if found.counts["leak"]
        else "bold green"
    )
    # Escaped here as well as at the end: what is wrapped must have the length that is shown.
    console.print(Text(plain(headline(found)), style=style if found.columns else "bold"))
    if found.workloads:
        for block in _blocks(found, console.width):
            console.print()
            console.print(_table(found, block, console))
        console.print()
        for line in _legend(found, console):
            console.print(line)
    _print_sentences(console, found)
    if found.left_out and found.columns:
        verb = "neither holds nor selects" if found.left_out == 1 else "neither hold nor select"
        console.print(Text(f"{_count(found.left_out, 'other')} {verb} a GPU (--every lists them)", style="dim"))
    if found.not_examined:
        console.print()
        console.print(Text("Not examined", style="bold"))
        for missing in lines_by_reason((entry.what, entry.why) for entry in found.not_examined):
            console.print(Text(f"  {missing}", style="dim"))


def _print_sentences(console: Console, found: GpuMap) -> None:
    from rich.text import Text

    sentences = list(remarkable(found))
    for state, workload, columns, sentence in sentences[:_SHOWN]:
        console.print()
        word = (WORDS[state] or state).upper()
        labels = ", ".join(column.label for column in columns)
        console.print(Text.assemble((word, _STYLES[state]), plain(f"  {workload.title}, {labels}: {sentence}")))
        if state == "lost" and columns[0].nodes:
            command = f"gpuiso explain --pid {workload.members[0].pid} {columns[0].nodes[0]}"
            console.print(Text.assemble(("  $ ", "dim"), command), soft_wrap=True)
    if len(sentences) > _SHOWN:
        console.print()
        console.print(f"and {len(sentences) - _SHOWN} more: --json and --html tell all")
    for workload in found.workloads[:_SHOWN]:
        for sentence in workload.closed:
            console.print()
            console.print(Text(plain(f"{workload.title}: {sentence}"), style="yellow"))
    for stray in found.strays:
        console.print()
        console.print(
            Text(
                f"{stray.gpu}: pid {stray.pid} holds {held(stray)}, and no process here can be told to be it",
                style="yellow",
            )
        )
    if sentences or found.strays or any(workload.closed for workload in found.workloads):
        console.print()


def _blocks(found: GpuMap, width: int) -> Iterator[Sequence[int]]:
    """The columns by place, as many at a time as a line has room for."""
    wide = 1 + max(_CELL, *(len(line) for column in found.columns for line in _heading(column).split("\n")))
    fit = max(1, (width - _NAME) // wide)
    for first in range(0, len(found.columns), fit):
        yield range(first, min(first + fit, len(found.columns)))


def _table(found: GpuMap, block: Sequence[int], console: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("workload", overflow="fold", min_width=_NAME - 1)
    for place in block:
        table.add_column(_heading(found.columns[place]), no_wrap=True, min_width=_CELL)
    for workload in found.workloads:
        cells = [_cell(workload.cells[place], console) for place in block]
        table.add_row(Text.assemble((f"{workload.kind} ", "dim"), one_line(workload.name)), *cells)
    return table


def _heading(column: Column) -> str:
    return column.label.replace(" MIG ", "\nMIG ").replace("NVIDIA ", "NVIDIA\n").replace("AMD ", "AMD\n")


def _cell(cell: Cell, console: Console) -> Text:
    from rich.text import Text

    sign = f"{SYMBOLS[cell.state]} {WORDS[cell.state]}".rstrip()
    below = memory(cell.memory) if cell.memory else "open" if cell.open and cell.state not in ("use", "kept") else ""
    return Text(_spelled(f"{sign}\n{below}" if below else sign, console), style=_STYLES[cell.state])


def _spelled(line: str, console: Console) -> str:
    """With symbols that the output's encoding has."""
    try:
        line.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return line.translate(_ASCII)
    return line


def _legend(found: GpuMap, console: Console) -> Iterator[Text]:
    from rich.text import Text

    for state, meaning in MEANINGS.items():
        if found.counts[state]:
            sign = f"{SYMBOLS[state]} {WORDS[state]}".ljust(_CELL)
            yield Text(_spelled(f"{sign}  {meaning}", console), style="dim")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _noun(columns: Sequence[Column]) -> str:
    return "GPU" if all(column.mig is None for column in columns) else "GPU or MIG device"
