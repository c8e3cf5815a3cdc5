# SPDX-License-Identifier: Apache-2.0
"""``gpuiso config``: the configuration of container engines and of NVIDIA's container toolkit."""

from __future__ import annotations

import enum
import json
import os
import posixpath
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.errors import NotFound, Unknown, UsageError

if TYPE_CHECKING:
    from gpuiso.host.protocol import Host
    from gpuiso.runtimes.engine import Engine
    from gpuiso.runtimes.plan import Plan
    from gpuiso.runtimes.write import Written

__all__ = ["config"]


class EngineName(enum.StrEnum):
    """Whose configuration."""

    TOOLKIT = "nvidia-container-runtime"
    DOCKER = "docker"
    CONTAINERD = "containerd"
    CRIO = "crio"
    PODMAN = "podman"
    K3S = "k3s"
    KUBELET = "kubelet"


class PresetName(enum.StrEnum):
    """What people want."""

    ROOTFUL = "rootful"
    ROOTLESS = "rootless"
    HARDENED = "hardened"
    CDI = "cdi"


def config(
    engine: Annotated[EngineName, typer.Argument(metavar="ENGINE", help=f"One of {', '.join(EngineName)}.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a key; give the option again for more keys. Lists: a,b or JSON."
        ),
    ] = None,
    preset: Annotated[
        PresetName | None,
        typer.Option(
            "--preset",
            help="rootful, rootless: NVIDIA's runtime, for engines of root or of a user; cdi: CDI; "
            "hardened: CDI and no other way.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each line means.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="List the keys that --set knows, with their defaults.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print the change, as diff -u does.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write it, in one step; the old file is kept.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="With --write: restart the service.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write also what the engine would refuse.")] = False,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="Another file than the usual one; a missing directory is made, not those above it.",
        ),
    ] = None,
    record: Annotated[
        str | None, typer.Option("--from", metavar="RECORD", help="Read the files of a host record.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Print, compare or write a configuration. Only what is asked for changes; all else stays byte for byte.

    Values are checked, and so is the whole: what the engine would refuse is not written. Nothing is restarted unless
    --restart says so; a service that does not come up gets its old files back.

    \b
    Examples:
      gpuiso config docker --preset cdi --diff
      gpuiso config docker --preset cdi --write --restart
      gpuiso config nvidia-container-runtime --set nvidia-container-cli.no-cgroups=false --write
      gpuiso config containerd --preset rootful --file /etc/containerd/conf.d/90-gpu.toml --diff
      gpuiso config nvidia-container-runtime --explain

    \b
    Exit codes: 0 printed, written, or nothing to change; 1 printed, and it has problems; 2 wrong usage or a file that
    cannot be used; 3 not permitted; 4 no such record, service or directory; 5 the record lacks a file; 7 it failed and
    was undone; 8 it could not be undone.
    """
    if write and (diff or explain or keys):
        raise UsageError("--write goes alone: --diff, --explain and --keys print")
    if restart and not write:
        raise UsageError("--restart goes with --write")
    if write and record is not None:
        raise UsageError("--write is for this machine, --from for another")
    if file is not None and not posixpath.basename(file):
        raise UsageError(f"--file {file!r} is not the name of a file")
    if file is not None and not file.startswith("/"):
        file = posixpath.normpath(posixpath.join(os.getcwd(), file))
    from gpuiso.host import open_host
    from gpuiso.runtimes.engine import Request
    from gpuiso.runtimes.plan import ENGINES, make_plan

    chosen = ENGINES[engine.value]
    if keys:
        _print_keys(chosen, as_json=as_json)
        return 0
    host = open_host(record)
    request = Request(
        host,
        file=file,
        preset=None if preset is None else preset.value,
        settings=tuple(settings or ()),
        config_home=_config_home() if record is None else None,
    )
    plan = make_plan(chosen, request, force=force)
    if write:
        if file is not None and plan.changed:
            _check_directory(file)
        _write(plan, host, force=force, restart=restart, user=_users(request.preset, file), as_json=as_json)
        return 0
    if as_json:
        print_object(_document(plan, _unit(chosen, host), ()))
    elif explain:
        _print_explained(plan)
    elif diff:
        sys.stdout.write("".join(change.diff() for change in plan.files))
    else:
        _print_files(plan)
    if not as_json:
        _say_problems(plan)
    return 1 if any(problem.severity != "info" for problem in plan.problems) else 0


def _check_directory(file: str) -> None:
    """The last directory is made. More than one missing directory is a misspelt path."""
    directory = posixpath.dirname(file)
    above = posixpath.dirname(directory)
    if not os.path.isdir(above):
        raise NotFound(f"{file}: there is no directory {above}", hint=f"mkdir -p {shlex.quote(directory)}")


def _config_home() -> str | None:
    """XDG_CONFIG_HOME of the caller (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if home.startswith("/"):
        return home
    home = os.path.expanduser("~")
    return f"{home}/.config" if home.startswith("/") else None


def _users(preset: str | None, file: str | None) -> bool:
    """Whether the file is a user's own, whose service is one of the user's manager."""
    home = _config_home()
    named = file is not None and home is not None and file.startswith(f"{home}/")
    return os.geteuid() != 0 and (preset == "rootless" or named)


def _unit(engine: Engine, host: Host) -> str | None:
    from gpuiso.runtimes.write import service_of

    try:
        return service_of(engine, host)
    except Unknown:
        return None


def _write(plan: Plan, host: Host, *, force: bool, restart: bool, user: bool, as_json: bool) -> None:
    from gpuiso.runtimes import write as writing

    unit = plan.engine.user_service if user else _unit(plan.engine, host)
    if restart and unit is None and plan.engine.services:
        raise NotFound(f"no service of {plan.engine.title} here that could be restarted: nothing was changed")
    if restart and unit is not None:
        written = writing.write_and_restart(plan, host, unit, ask=not force, user=user)
    else:
        written = writing.write(plan, host, ask=not force)
    restarted = restart and unit is not None and bool(written)
    if as_json:
        print_object(_document(plan, unit, written, restarted=restarted))
        return
    backups = {one.path: one.backup for one in written}
    for change in plan.files:
        if not change.changed:
            _say(f"{change.path}: nothing to change")
        elif backups[change.path] is None:
            _say(f"{change.path}: written")
        else:
            _say(f"{change.path}: written; it was before: {backups[change.path]}")
    if written:
        _say(_next_step(plan, unit, restarted=restarted, user=user))
    _say_problems(plan)


def _next_step(plan: Plan, unit: str | None, *, restarted: bool, user: bool) -> str:
    engine = plan.engine
    if not engine.services:
        return engine.restart_says
    if restarted:
        return f"{unit} was restarted"
    command = f"systemctl {'--user ' if user else ''}restart {unit or engine.services[0]}"
    return f"not read yet: {command} ({engine.restart_says}); --restart does it"


def _print_files(plan: Plan) -> None:
    several = sum(1 for change in plan.files if change.new) > 1
    for change in plan.files:
        if several:
            sys.stdout.write(f"# {change.path}\n")
        sys.stdout.write(change.new)
    if not plan.files[0].new:
        _say(f"{plan.files[0].path}: there is no such file, and {plan.engine.title} goes by its defaults", err=True)


def _print_explained(plan: Plan) -> None:
    lines = plan.files[0].new.splitlines()
    for one in plan.explained:
        text = lines[one.line - 1].strip() if one.line is not None else f"{one.key} = {_text(one.value)}"
        mark = "+" if one.changed else " "
        _say(f"{mark} {'' if one.line is None else one.line}: {text}", fg="green" if one.changed else None)
        default = "" if one.default is None else f" (default {_text(one.default)})"
        _say(f"      {one.key}: {one.says or 'no key that gpuiso knows; kept as it is'}{default}")
    if not plan.explained:
        _say(f"{plan.files[0].path}: nothing is set, and {plan.engine.title} goes by its defaults")


def _print_keys(engine: Engine, *, as_json: bool) -> None:
    from gpuiso.runtimes.formats import dotted

    if as_json:
        rows = [
            {"key": dotted(key.path), "kind": key.kind, "default": key.default, "says": key.says}
            for key in engine.keys.keys
        ]
        print_object({"gpuiso": "config-keys/1", "engine": engine.name, "keys": rows})
        return
    for key in engine.keys.keys:
        default = "" if key.default is None else f", default {_text(key.default)}"
        _say(f"{dotted(key.path)}  ({key.kind}{default})")
        _say(f"    {key.says}")


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return str(value)


def _say_problems(plan: Plan) -> None:
    for note in plan.place.notes:
        _say(f"note: {note}", err=True)
    for problem in plan.problems:
        colour = {"error": "red", "warning": "yellow"}.get(problem.severity)
        _say(f"{problem.severity}: {problem}", err=True, fg=colour)


def _document(plan: Plan, unit: str | None, written: tuple[Written, ...], *, restarted: bool = False) -> dict[str, Any]:
    backups = {one.path: one.backup for one in written}
    return {
        "gpuiso": "config/1",
        "engine": plan.engine.name,
        "changed": plan.changed,
        "files": [
            {
                "file": change.path,
                "exists": change.old is not None,
                "changed": change.changed,
                "text": change.new,
                "diff": change.diff(),
                "written": change.path in backups,
                "backup": backups.get(change.path),
            }
            for change in plan.files
        ],
        "keys": [
            {
                "key": one.key,
                "value": json.loads(json.dumps(one.value, default=str)),
                "line": one.line,
                "default": one.default,
                "says": one.says,
                "changed": one.changed,
            }
            for one in plan.explained
        ],
        "problems": [
            {"severity": one.severity, "message": one.message, "file": one.file, "line": one.line}
            for one in plan.problems
        ],
        "notes": list(plan.place.notes),
        "service": {"unit": unit, "restarted": restarted, "says": plan.engine.restart_says},
    }


def _say(text: str, *, err: bool = False, fg: str | None = None) -> None:
    typer.secho(plain(text), err=err, fg=fg)
