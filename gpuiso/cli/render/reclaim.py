# SPDX-License-Identifier: Apache-2.0
"""What reclaim and restore show to people: who is hit, how far a copy is, what became of each process."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from gpuiso.cli.render.plain import plain
from gpuiso.reclaim.records import Record
from gpuiso.reclaim.selection import Candidate
from gpuiso.reclaim.session import Progress

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ProgressLine", "candidate_table", "duration", "record_table", "size", "timings"]

_MIB = 1 << 20
_GIB = 1 << 30


def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "?"
    return f"{count / _GIB:.1f} GiB" if count >= 10 * _GIB else f"{count // _MIB} MiB"


def duration(seconds: float) -> str:
    """A time for people."""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def timings(seconds: Mapping[str, float]) -> str:
    """Each phase with its time; the whole is told elsewhere."""
    return ", ".join(f"{phase} {duration(value)}" for phase, value in seconds.items() if phase != "whole")


def candidate_table(candidates: Iterable[Candidate]) -> Table:
    """Processes and what they hold."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, pad_edge=False, header_style="dim")
    for name in ("pid", "command", "user", "GPU", "memory"):
        table.add_column(name, overflow="fold", justify="right" if name in ("pid", "memory") else "left")
    for who in candidates:
        rows = list(who.memory.items()) or [(gpu, None) for gpu in who.gpus[:1]] or [("", None)]
        for place, (gpu, used) in enumerate(rows):
            first = (str(who.pid), who.comm, who.user) if not place else ("", "", "")
            table.add_row(*(Text(text) for text in (*first, gpu, size(used) if gpu in who.memory else "")))
    return table


def record_table(records: Iterable[Record], ended: Collection[Record], now: float) -> Table:
    """What is reclaimed; ``ended`` are those whose process is gone."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, pad_edge=False, header_style="dim")
    for name in ("pid", "command", "state", "since", "memory", "GPU"):
        table.add_column(name, overflow="fold")
    for record in records:
        word = record.phase if record.finished else f"{record.phase} (interrupted, or under way)"
        word = "ended" if record in ended else word
        since = f"{(now - record.time) / 60:.0f} min" if now - record.time > 90 else f"{now - record.time:.0f} s"
        gpus = " ".join(record.gpus)
        memory = size(record.footprint) if record.memory else ""
        table.add_row(*(Text(text) for text in (str(record.pid), record.comm, word, since, memory, gpus)))
    return table


class ProgressLine:
    """One line on standard error that is written over; nothing where that is no terminal."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        if not self.shown:
            return
        self._write(progress_text(progress))

    def _write(self, text: str) -> None:
        text = plain(text)
        print(f"\r{text:{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def clear(self) -> None:
        """Takes the line away."""
        if self._width:
            self._write("")
            print("\r", end="", file=sys.stderr, flush=True)
            self._width = 0


def progress_text(progress: Progress) -> str:
    """``checkpoint of process 4711 (python): 3.1 of 8.0 GiB, 2.1 GB/s, 2 s left``."""
    said = f"{progress.phase} of {progress.target}: {progress.moved / _GIB:.1f}"
    rate = progress.moved / progress.seconds if progress.seconds > 0 else 0.0
    if progress.total is None:
        return f"{said} GiB, {rate / 1e9:.1f} GB/s"
    said += f" of {progress.total / _GIB:.1f} GiB, {rate / 1e9:.1f} GB/s"
    left = progress.total - progress.moved
    return f"{said}, {left / rate:.0f} s left" if rate > 0 and left > 0 else said
