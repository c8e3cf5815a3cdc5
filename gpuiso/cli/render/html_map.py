# SPDX-License-Identifier: Apache-2.0
"""The map as a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from gpuiso.cli.render.host import host_line
from gpuiso.cli.render.html import Field, Heading, not_examined, page, table, tag, text
from gpuiso.cli.render.map import MEANINGS, SYMBOLS, headline, held, memory, remarkable
from gpuiso.doctor.gates import Gate
from gpuiso.doctor.map.model import SEVERITY, Cell, Column, GpuMap, State, Workload
from gpuiso.host.protocol import Host

__all__ = ["map_page", "now"]

_LONG_ID = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
_LONG_WORDS: dict[State, str] = {
    "lost": "lost",
    "leak": "leak",
    "kept": "still open",
    "unknown": "not known",
    "use": "in use",
    "ready": "selected",
    "may": "may open",
    "closed": "closed",
}


def map_page(found: GpuMap) -> str:
    """The whole document."""
    kind = (
        "warning" if found.blind else "error" if found.counts["lost"] else "warning" if found.counts["leak"] else "good"
    )
    body = [
        f'<p class="verdict {kind}">{text(headline(found))}</p>\n',
        f'<p class="facts">{text(host_line(found.machine))}</p>\n',
    ]
    if found.workloads:
        body += [_table(found), _legend(found), _sentences(found)]
    elif found.columns and found.blind is None:
        body.append("<p>No workload holds or selects a GPU.</p>\n")
    body.append(not_examined((entry.what, entry.why) for entry in found.not_examined))
    return page(f"GPU map of {found.machine.host.name}", "".join(body), made=now(found.machine.host))


def now(host: Host) -> str | None:
    """When a live host was read; of a record that is not now."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC") if host.live else None


def _table(found: GpuMap) -> str:
    headings = [Heading("Workload"), *(Heading(column.label) for column in found.columns)]
    rows = ([_name(workload), *(_cell(cell) for cell in workload.cells)] for workload in found.workloads)
    caption = "Each cell: may the workload open the GPU, does its environment select it, has it open, how much it holds"
    return f"<section><h2>Workloads and GPUs</h2>\n{table(caption, headings, rows, region='map')}</section>\n"


def _name(workload: Workload) -> Field:
    details = [] if workload.kind == "process" else [_processes(workload)]
    details += [f"{name}={value}" for name, value in workload.variables]
    if workload.cgroup is not None and workload.kind != "process":
        details.append(_LONG_ID.sub(r"\1…", workload.cgroup))
    lines = "".join(f'<span class="detail mono">{text(_cut(line))}</span>' for line in details)
    return Field(f'<span class="faint">{text(workload.kind)}</span> {text(workload.name)}{lines}', workload.name)


def _processes(workload: Workload) -> str:
    shown = [f"{member.comm} {member.pid}" for member in workload.members[:4]]
    more = len(workload.members) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _cut(line: str, length: int = 200) -> str:
    return line if len(line) <= length else f"{line[: length - 3]}..."


def _cell(cell: Cell) -> Field:
    details = []
    if cell.memory:
        details.append(f"holds {memory(cell.memory)}")
    if cell.open:
        details.append(f"open {cell.open} time{'' if cell.open == 1 else 's'}")
    if cell.selected and cell.state not in ("ready", "lost"):
        details.append("selected")
    if cell.state in ("lost", "kept", "closed", "unknown") and cell.gate is not None:
        details.append(_gate(cell.gate))
    lines = "".join(f'<span class="detail">{text(line)}</span>' for line in details)
    sort = SEVERITY.index(cell.state) - min((cell.memory or 0) / (1 << 50), 0.999)
    return Field(f"{tag(cell.state, f'{SYMBOLS[cell.state]} {_LONG_WORDS[cell.state]}')}{lines}", round(sort, 12))


def _gate(gate: Gate) -> str:
    if gate.errno == "ENOENT":
        return "not in its /dev"
    return f"{gate.gate}: {_cut(gate.says, 80)}"


def _legend(found: GpuMap) -> str:
    entries = "".join(
        f"<dt>{tag(state, f'{SYMBOLS[state]} {_LONG_WORDS[state]}')}</dt><dd>{text(meaning)}</dd>\n"
        for state, meaning in MEANINGS.items()
        if found.counts[state]
    )
    return f'<section><h2>Legend</h2><dl class="legend">\n{entries}</dl></section>\n'


def _sentences(found: GpuMap) -> str:
    items = [
        f"<li>{tag(state, _LONG_WORDS[state])} <strong>{text(workload.title)}</strong>,"
        f" {text(_labels(columns))}: {text(sentence)}</li>\n"
        for state, workload, columns, sentence in remarkable(found)
    ]
    items += [
        f"<li><strong>{text(workload.title)}</strong>: {text(sentence)}</li>\n"
        for workload in found.workloads
        for sentence in workload.closed
    ]
    items += [
        f"<li><strong>{text(stray.gpu)}</strong>: pid {stray.pid} holds {text(held(stray))}, and no process here can be"
        " told to be it</li>\n"
        for stray in found.strays
    ]
    if not items:
        return ""
    return f'<section><h2>What stands out</h2>\n<ul class="plain">\n{"".join(items)}</ul></section>\n'


def _labels(columns: Sequence[Column]) -> str:
    return ", ".join(column.label for column in columns)
