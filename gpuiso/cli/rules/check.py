# SPDX-License-Identifier: Apache-2.0
"""``gpuiso rules check``: is a policy right, and what does it come to on a host?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.rules.grants import GrantsChecked, check_grants
from gpuiso.cli.rules.source import PolicyFile, Record
from gpuiso.cli.source import read_source
from gpuiso.errors import BadInput, NotSupported, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from gpuiso.policy.place import Place
    from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["check"]

_HEAD = ("rule", "line", "as written")


@dataclass(frozen=True)
class _Checked:
    """``policy`` is what of it is right; ``limits`` are its limits by key, as they are written.

    ``grants`` is what a file of grants says instead.
    """

    file: str
    policy: ResolvedPolicy
    errors: list[BadInput]
    limits: dict[str, str | list[str]]
    back_ends: dict[str, str | None]
    grants: GrantsChecked | None = None


def check(
    file: PolicyFile,
    record: Record = None,
    syntax: Annotated[
        bool, typer.Option("--syntax", help="Read the text alone: no GPU, path or driver is looked up.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Check a policy, and show what it comes to on this host.

    The text is checked, and that everything it names is here; all errors are shown at once. Then it shows whether
    cgroup v1 and systemd can hold them too. Of a file of /etc/gpuiso/policy.d that says who may have which GPUs, it
    shows what each grant comes to.

    \b
    Examples:
      gpuiso rules check gpu.yaml
      gpuiso rules check gpu.yaml --from host.tar.gz
      echo 'allow gpu 0' | gpuiso rules check -

    \b
    Exit codes: 0 fine (there may be warnings); 2 errors, or wrong usage; 3 not permitted; 4 no such file or record.
    """
    if syntax and record is not None:
        raise UsageError("--syntax looks nothing up: it does not go with --from")
    from gpuiso.grants.document import is_grants

    text = read_source(file)
    if is_grants(text):
        checked = _of_grants(check_grants(file, text, record, syntax=syntax), file)
    else:
        checked = _check(file, text, record, syntax=syntax)
    if as_json:
        print_object(_as_json(checked))
    else:
        from gpuiso.cli.render.console import make_console

        _print(make_console(), checked)
    return BadInput.exit_code if checked.errors else 0


def _of_grants(found: GrantsChecked, file: str) -> _Checked:
    from gpuiso.policy.resolve import ResolvedPolicy

    policy = ResolvedPolicy((), True, restricts_devices=False, remarks=found.remarks)
    return _Checked(file, policy, list(found.errors), {}, {}, found)


def _check(file: str, text: str, record: str | None, *, syntax: bool) -> _Checked:
    from gpuiso.host import open_host
    from gpuiso.policy.document import Document, read_policy
    from gpuiso.policy.resolve import read_resolved

    document, errors = read_policy(text, file=file)
    if syntax:
        document = Document(None, None, document.gpu_max, document.gpu_memory_max, document.files)
    policy, unresolved = read_resolved(document, open_host(record))
    errors = sorted([*errors, *unresolved], key=lambda error: (error.line or 0, error.column or 0))
    limits: dict[str, str | list[str]] = {}
    if policy.gpu_max is not None:
        limits["gpu.max"] = str(policy.gpu_max)
    if policy.memory_max is not None:
        limits["gpu.memory.max"] = str(policy.memory_max)
    limits |= {name: lines[0] if len(lines) == 1 else list(lines) for name, lines in policy.files.items() if lines}
    back_ends = _back_ends(policy) if policy.restricts_devices and not errors else {}
    return _Checked(file, policy, errors, limits, back_ends)


def _back_ends(policy: ResolvedPolicy) -> dict[str, str | None]:
    """Why a back end cannot hold the rules; None if it can."""
    from gpuiso.devfilter.program import to_program
    from gpuiso.policy.systemd import to_systemd
    from gpuiso.policy.v1 import v1_state

    found: dict[str, str | None] = {"cgroup v2": None, "cgroup v1": None, "systemd": None}
    try:
        to_program(policy)
    except NotSupported as error:
        found["cgroup v2"] = error.message
    for name, hold in (("cgroup v1", v1_state), ("systemd", to_systemd)):
        try:
            hold(policy.rules, default_allow=policy.default_allow)
        except NotSupported as error:
            found[name] = error.message
    return found


def _as_json(checked: _Checked) -> dict[str, Any]:
    from gpuiso.policy.place import bare_message

    policy = checked.policy
    return {
        "gpuiso": "rules-check/1",
        "file": checked.file,
        "errors": [
            {"line": error.line, "column": error.column, "message": bare_message(error), "hint": error.hint}
            for error in checked.errors
        ],
        "warnings": [
            {"line": said.place.line, "column": said.place.column, "message": said.message, "hint": said.hint}
            for said in policy.remarks
        ],
        "default": _default(policy),
        "rules": [
            {"rule": str(rule), "line": rule.place.line if rule.place else None, "text": _text(rule.place)}
            for rule in policy.rules
        ],
        "limits": checked.limits,
        "back_ends": checked.back_ends,
        "grants": None if checked.grants is None else checked.grants.as_json(),
    }


def _default(policy: ResolvedPolicy) -> str | None:
    if not policy.restricts_devices:
        return None
    return "allow" if policy.default_allow else "deny"


def _text(place: Place | None) -> str:
    return "" if place is None else place.text


def _print(console: Console, checked: _Checked) -> None:
    from rich.text import Text

    policy = checked.policy
    for error in checked.errors:
        _print_said(console, Text.assemble(("error: ", "bold red"), error.message), error.hint)
    for said in policy.remarks:
        _print_said(console, Text.assemble(("warning: ", "bold yellow"), str(said)), said.hint)
    if checked.errors:
        count = "1 error" if len(checked.errors) == 1 else f"{len(checked.errors)} errors"
        console.print(Text(f"{checked.file}: {count}", style="bold red"))
        return
    console.print(Text(f"{checked.file}: fine", style="bold green"))
    if checked.grants is not None:
        checked.grants.print(console)
    default = _default(policy)
    if default is not None:
        console.print(f"what no rule speaks of: {default}")
        _print_rules(console, policy)
    for name, value in checked.limits.items():
        for line in value if isinstance(value, list) else [value]:
            console.print(f"{name}: {line}")
    for name, why in checked.back_ends.items():
        console.print(f"{name}: {'can hold these rules' if why is None else f'cannot hold these rules: {why}'}")


def _print_said(console: Console, text: Any, hint: str | None) -> None:
    console.print(text, soft_wrap=True)
    if hint:
        console.print(f"  {hint}", soft_wrap=True)


def _print_rules(console: Console, policy: ResolvedPolicy) -> None:
    """Aligned by hand: rich takes seconds to measure and wrap the tens of thousands of rows that a policy may have."""
    from rich.text import Text

    if not policy.rules:
        return
    rows = []
    for rule in policy.rules:
        line = "" if rule.place is None or rule.place.line is None else str(rule.place.line)
        rows.append((str(rule), line, " ".join(_text(rule.place).split())))  # in YAML a rule may go over lines
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in (0, 1)]
    lines = [f"{rule:{widths[0]}}  {line:{widths[1]}}  {text}" for rule, line, text in (_HEAD, *rows)]
    console.print(Text(lines[0], style="dim"), soft_wrap=True)
    console.print(Text("\n".join(lines[1:])), soft_wrap=True)
