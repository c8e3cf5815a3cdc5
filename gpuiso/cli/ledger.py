# SPDX-License-Identifier: Apache-2.0
"""``gpuiso ledger``: what was done to which process, by whom, and whether that account is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuiso.cli.render.objects import print_object

__all__ = ["app"]

app = typer.Typer(help="What was done to which process, by whom.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def ledger() -> None:
    pass


@app.command("verify")
def verify(
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="A ledger elsewhere than /var/log/gpuiso/ledger.jsonl.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Check that nobody changed the ledger.

    Finds entries that were changed, removed, inserted or cut off. Each entry holds the hash of the one before it. Keep
    the hash that this prints somewhere else: whoever may write the ledger could write a new one, but not one that leads
    to the same hash.

    \b
    Examples:
      gpuiso ledger verify
      gpuiso ledger verify --file /mnt/backup/ledger.jsonl --json

    \b
    Exit codes: 0 whole; 1 an entry was tampered with, or entries are missing; 2 it is no regular file;
    3 not permitted; 4 no ledger.
    """
    from pathlib import Path

    from gpuiso.reclaim.ledger import LEDGER, Ledger

    path = LEDGER if file is None else Path(file)
    found = Ledger(path).verify()
    fault = found.fault
    if as_json:
        told = None if fault is None else {"line": fault.line, "says": fault.says}
        print_object(
            {
                "gpuiso": "ledger-verify/1",
                "file": str(path),
                "entries": found.entries,
                "head": found.head,
                "fault": told,
            }
        )
    elif fault is None:
        entries = "1 entry" if found.entries == 1 else f"{found.entries} entries"
        print(f"{path}: {entries}, whole; the last one's hash is {found.head}")
    else:
        print(f"{path}:{fault.line}: {fault.says}")
    return 0 if fault is None else 1
