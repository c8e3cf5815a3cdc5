# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules unit``: a drop-in for a unit."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.cli.rules.source import Record, load_policy
from gpuiso.errors import FailedAndUndone, NotPermitted, UsageError

__all__ = ["unit_rules"]


def unit_rules(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A unit; a name without suffix is a service's.")],
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="A policy; - is standard input.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the drop-in to where it belongs.")] = False,
    record: Record = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Print a drop-in that gives a unit the rules of a policy.

    They hold from every start on, and across every daemon-reload. Commands in the unit that write to devices.allow,
    devices.deny, gpu.max or a devices or gpu controller are found, translated to settings and taken out: cgroup v2 has
    no such files, whatever pages say.

    \b
    Examples:
      gpuiso rules unit jupyter.service --policy gpu.yaml
      gpuiso rules unit jupyter.service --policy gpu.yaml --write
      gpuiso rules unit trainer.service                    only translate what its commands try to do

    \b
    Exit codes: 0 done; 2 wrong usage or bad policy; 3 not permitted to write; 4 no such unit; 5 systemd cannot say it.
    """
    from gpuiso.host import open_host
    from gpuiso.systemd.drop_in import make_drop_in
    from gpuiso.systemd.unit_files import full_name, unit_settings

    if write and record is not None:
        raise UsageError("--write changes this host: it does not go with --from")
    host, unit = open_host(record), full_name(name)
    resolved = None if policy is None else load_policy(policy, host)
    made = make_drop_in(unit, unit_settings(host, unit), resolved)
    if write:
        _write(made.path, made.text)
    if as_json:
        print_object(
            {
                "gpuiso": "rules-unit/1",
                "unit": unit,
                "path": made.path,
                "text": made.text,
                "notes": list(made.notes),
                "written": write,
            }
        )
    elif write:
        for note in made.notes:
            print(plain(f"note: {note}"))
        print(plain(f"wrote {made.path}; it holds after: systemctl daemon-reload && systemctl restart {unit}"))
    else:
        print(plain(made.text), end="")
    return 0


def _write(path: str, text: str) -> None:
    import os

    from gpuiso.oci.files import replace_file

    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        replace_file(path, text.encode())
    except (PermissionError, NotPermitted) as error:
        raise NotPermitted(f"{path} may not be written", hint="run it as root, or print it without --write") from error
    except OSError as error:
        raise FailedAndUndone(f"{path}: its directory cannot be made: {error.strerror}") from error
