# SPDX-License-Identifier: Apache-2.0
"""``gpuiso leases``: who holds which GPU, and who waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.render.objects import print_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuiso.grants.units import Unit
    from gpuiso.launch.lease import Lease, Ticket

__all__ = ["leases"]


def leases(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show which GPUs are leased, and by whom.

    Also shows who uses one without a lease, and who waits. A lease lives as long as a process is in its cgroup. Those
    that ended are taken away by whoever looks.

    \b
    Examples:
      gpuiso leases
      gpuiso leases --json

    \b
    Exit codes: 0 shown; 2 a lease is damaged (named); 3 the leases may not be read.
    """
    from gpuiso.apply.calls import Calls
    from gpuiso.gpu.inventory import build_inventory
    from gpuiso.grants.units import units_of
    from gpuiso.host import open_host
    from gpuiso.launch.cgroups import Cgroups, boot_id
    from gpuiso.launch.store import Leases
    from gpuiso.launch.usage import unleased

    host = open_host(None)
    found, waiting = Leases(Cgroups(Calls(), boot_id(host))).listing()
    units = units_of(build_inventory(host))
    strangers = unleased(host, units, found)
    if as_json:
        print_object(_as_json(found, waiting, units, strangers))
    else:
        _print(found, waiting, units, strangers)
    return 0


def _as_json(
    found: Sequence[Lease], waiting: Sequence[Ticket], units: Sequence[Unit], strangers: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    return {
        "gpuiso": "leases/1",
        "leases": [
            {
                "id": lease.id,
                "name": lease.name,
                "state": "running" if lease.cgroup is not None and lease.cgroup.inode else "starting",
                "gpus": [_unit(name, gpu, units) for name, gpu in lease.units],
                "share": lease.share,
                "user": {"uid": lease.user, "name": lease.user_name},
                "command": list(lease.command),
                "pid": lease.pid,
                "cgroup": None if lease.cgroup is None else lease.cgroup.path,
                "unit": None if lease.cgroup is None else lease.cgroup.unit,
                "taken": lease.taken,
                "gpu.max": lease.gpu_max,
                "gpu.memory.max": lease.gpu_memory,
            }
            for lease in found
        ],
        "waiting": [
            {"ticket": t.number, "pid": t.pid, "uid": t.user, "gpus": t.text, "share": t.share, "since": t.since}
            for t in waiting
        ],
        "unleased": [{"gpu": name, "pids": list(pids)} for name, pids in strangers.items()],
        "free": _free(found, units, strangers),
    }


def _unit(name: str, gpu: str, units: Sequence[Unit]) -> dict[str, Any]:
    known = next((unit for unit in units if unit.id == name), None)
    return {
        "id": name,
        "gpu": gpu,
        "vendor": None if known is None else known.vendor,
        "index": None if known is None else known.index,
        "profile": None if known is None else known.profile,
    }


def _free(found: Sequence[Lease], units: Sequence[Unit], strangers: Mapping[str, Sequence[int]]) -> list[str]:
    from gpuiso.grants.units import overlap

    taken = [pair for lease in found for pair in lease.units]
    return [unit.id for unit in units if unit.id not in strangers and not overlap((unit.id, unit.gpu), taken)]


def _print(
    found: Sequence[Lease], waiting: Sequence[Ticket], units: Sequence[Unit], strangers: Mapping[str, Sequence[int]]
) -> None:
    from rich.table import Table
    from rich.text import Text

    from gpuiso.cli.render.console import make_console
    from gpuiso.grants.units import overlap

    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("GPU", "who", "user", "since", "command"):
        table.add_column(name, overflow="fold")
    for unit in units:
        holders = [lease for lease in found if overlap((unit.id, unit.gpu), lease.units)]
        for lease in holders:
            shared = " (shared)" if lease.share else ""
            words = (f"{lease.name}{shared}", lease.user_name, _ago(lease.taken), " ".join(lease.command))
            table.add_row(Text(str(unit)), *map(Text, words))
        if unit.id in strangers:
            pids = ", ".join(map(str, strangers[unit.id]))
            table.add_row(Text(str(unit)), Text(f"process {pids}, without a lease", style="yellow"), "", "", "")
        elif not holders:
            table.add_row(Text(str(unit)), Text("free", style="green"), "", "", "")
    if units:
        console.print(table)
    else:
        console.print("no GPU that can be leased was found here")
    for lease in found:
        if not lease.units:
            console.print(f"{lease.name} of {lease.user_name} has no GPU")
    for ticket in waiting:
        console.print(f"process {ticket.pid} waits for {ticket.text}, since {_ago(ticket.since)}")


def _ago(then: float) -> str:
    seconds = max(0, int(time.time() - then))
    for size, letter in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {letter}"
    return f"{seconds} s"
