# SPDX-License-Identifier: Apache-2.0
"""``gpuiso map``: which workload may open, selects, has open and fills which GPU?"""

from __future__ import annotations

from typing import Annotated

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.errors import Unknown, UsageError

__all__ = ["show_map"]


def show_map(
    record: Annotated[
        str | None, typer.Option("--from", metavar="RECORD", help="Map a recorded host (a directory or .tar.gz).")
    ] = None,
    every: Annotated[bool, typer.Option("--every", help="Also list who neither holds nor selects a GPU.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write one page for a browser, complete in itself."),
    ] = None,
) -> int:
    """Show which workload may open, selects and fills which GPU.

    Workloads are containers, units, jobs and other cgroups; processes that are in none of these stand alone. Each
    cell sums up every gate between the workload and the GPU, what its environment selects, the descriptors it has open
    and the memory that NVML says it holds. Two things stand out: leaks (a GPU may be opened, though the workload
    selects others) and lost GPUs (selected, but it may not be opened).

    \b
    Examples:
      gpuiso map
      gpuiso map --html map.html
      gpuiso map --from host.tar.gz --json

    \b
    Exit codes: 0 neither a leak nor a lost GPU; 1 there is one; 2 wrong usage, a bad record, or a FILE that
    cannot be written; 3 not permitted; 4 no such record; 5 no process can be looked at.
    """
    if as_json and html is not None:
        raise UsageError("--json prints, --html writes a file: give one of them")
    from gpuiso.doctor.map import build_map
    from gpuiso.host import open_host

    found = build_map(open_host(record), every=every)
    if as_json:
        from gpuiso.doctor.map.as_json import map_json

        print_object(map_json(found))
    elif html is not None:
        from gpuiso.cli.render.html_file import write_page
        from gpuiso.cli.render.html_map import map_page
        from gpuiso.cli.render.map import headline
        from gpuiso.cli.render.plain import plain

        write_page(html, map_page(found))
        print(plain(headline(found)))
        print(plain(f"written to {html}"))
    else:
        from gpuiso.cli.render.console import make_console
        from gpuiso.cli.render.map import print_map

        print_map(make_console(), found)
    if found.blind is not None and found.columns:
        return Unknown.exit_code
    return 1 if found.bad else 0
