# SPDX-License-Identifier: Apache-2.0
"""``gpuiso cdi``: list, validate and inject Container Device Interface specs."""

from __future__ import annotations

import functools
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.cdi_generate import Json, Record, generate, refresh, say
from gpuiso.cli.render.objects import print_file, print_object
from gpuiso.cli.render.plain import one_line
from gpuiso.cli.source import MOST_OF_CONFIG, read_source
from gpuiso.errors import NotFound, Unknown, UsageError

if TYPE_CHECKING:
    from gpuiso.cdi.cache import Cache
    from gpuiso.cdi.report import FileReport
    from gpuiso.host.protocol import Host

__all__ = ["app"]

app = typer.Typer(
    name="cdi",
    no_args_is_help=True,
    help="Container Device Interface: list, check, inject, make specs.",
)

SpecDirs = Annotated[
    list[str] | None,
    typer.Option(
        "--spec-dir",
        metavar="DIR",
        help="A directory of specs; of several the later wins. Default: /etc/cdi, then /var/run/cdi, if they exist.",
    ),
]


def _directories(spec_dir: list[str] | None, host: Host) -> tuple[str, ...]:
    """The default directories need not exist; one that somebody names and that does not is a slip.

    :raises NotFound: a named directory does not exist. :raises UsageError: it is none.
    """
    from gpuiso.cdi.cache import DEFAULT_SPEC_DIRS

    if not spec_dir:
        return DEFAULT_SPEC_DIRS
    for path in spec_dir:
        try:
            node = host.stat(path)
        except Unknown:
            continue  # whoever reads it says why
        if node is None:
            raise NotFound(f"--spec-dir: {path}: no such directory")
        if node.type != "d":
            raise UsageError(f"--spec-dir: {path}: not a directory")
    return tuple(spec_dir)


@app.command("list")
def list_devices(spec_dir: SpecDirs = None, record: Record = None, as_json: Json = False) -> None:
    """List the devices that containers can ask for.

    Devices of a file that cannot be used, and those that two files of one directory define, are left out.

    \b
    Examples:
        gpuiso cdi list
        gpuiso cdi list --spec-dir /etc/cdi --spec-dir /var/run/cdi --json

    \b
    Exit codes: 0 listed; 1 a file cannot be used, or devices are in conflict; 2 wrong usage or a bad record;
    4 no such record, or no such directory of --spec-dir.
    """
    from gpuiso.cdi.cache import load
    from gpuiso.cdi.report import list_document
    from gpuiso.host import open_host

    host = open_host(record)
    cache = load(host, _directories(spec_dir, host))
    if as_json:
        print_object(list_document(cache))
    else:
        _print_devices(cache)
        for message in dict.fromkeys(error.message for error in cache.errors):
            say(f"error: {message}", err=True, fg="red")
        if not cache.devices and not cache.errors:
            say(f"no CDI devices in {' or '.join(cache.directories)}", err=True)
    raise typer.Exit(1 if cache.errors else 0)


@app.command()
def validate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|DIR]...",
            help="What to check; with --from, paths in the record. Default: /etc/cdi and /var/run/cdi.",
        ),
    ] = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Say whether the container engines accept a spec.

    Warns of what goes wrong although they do. Directories are also checked together: shadowed and conflicting
    devices are named. With --from, the files are looked up in the record, and so is what they name.

    \b
    Examples:
        gpuiso cdi validate /etc/cdi/nvidia.yaml
        gpuiso cdi validate /etc/cdi /var/run/cdi --json
        gpuiso cdi validate --from host.tar.gz /etc/cdi

    \b
    Exit codes: 0 accepted, nothing to say; 1 accepted with warnings; 2 a file is refused, or wrong usage;
    4 no such file or record; 5 the record does not have the file.
    """
    from gpuiso.cdi.cache import DEFAULT_SPEC_DIRS
    from gpuiso.cdi.engines import installed_engines
    from gpuiso.cdi.report import validate_document, validate_paths
    from gpuiso.host import open_host

    host = open_host(record)
    wanted = tuple(paths) if paths else tuple(path for path in DEFAULT_SPEC_DIRS if _there(host, path))
    try:
        reports = validate_paths(host, wanted, functools.cache(lambda: installed_engines(host)))
    except (NotFound, Unknown) as error:
        if record is not None:
            error.hint = "with --from, files are looked up in the record, not on this machine"
        raise
    if as_json:
        print_object(validate_document(reports))
    else:
        for report in reports:
            _print_report(report)
        if not reports:
            say("no CDI specs to check", err=True)
    if any(report.problems for report in reports):
        raise typer.Exit(2)
    severities = {warning.severity for report in reports for warning in report.warnings}
    raise typer.Exit(1 if severities & {"error", "warning"} else 0)


@app.command(context_settings={"ignore_unknown_options": True})  # a bad name may start with a dash
def inject(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="An OCI config.json, or - for standard input.")],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Devices, as vendor/class=name.")],
    spec_dir: SpecDirs = None,
    write: Annotated[
        bool, typer.Option("--write", help="Replace CONFIG in one step instead of printing the result.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Errors as a JSON object; the config is JSON in any case.")
    ] = False,
) -> None:
    """Add CDI devices to an OCI config, as a container engine would.

    Names that no spec defines are all listed, and nothing is written.

    \b
    Examples:
        gpuiso cdi inject config.json nvidia.com/gpu=0 > edited.json
        runc spec && gpuiso cdi inject --write config.json nvidia.com/gpu=all

    \b
    Exit codes: 0 done; 2 wrong usage, a bad config or a bad name; 3 not permitted; 4 no such file, directory or device;
    7 it could not be written.
    """
    from gpuiso.cdi.cache import load
    from gpuiso.cdi.inject import inject as inject_devices
    from gpuiso.host import open_host
    from gpuiso.oci.config import parse_config
    from gpuiso.oci.files import replace_file

    for name in (config, *names):
        if name.startswith("--"):
            raise UsageError(f"no such option: {name}")
    if write and config == "-":
        raise UsageError("--write needs a file: standard input cannot be replaced")
    host = open_host()
    document = parse_config(read_source(config, most=MOST_OF_CONFIG), config)
    edited = inject_devices(host, load(host, _directories(spec_dir, host)), document, names)
    text = json.dumps(edited, indent=2, ensure_ascii=False) + "\n"
    if write:
        replace_file(config, text.encode(errors="backslashreplace"))  # as JSON escapes half a surrogate pair
    else:
        print_file(text)


def _there(host: Host, path: str) -> bool:
    try:
        return host.stat(path) is not None
    except Unknown:
        return False


def _print_devices(cache: Cache) -> None:
    """A name a line in a pipe; on a terminal a tree of kinds, with the file that each device comes from."""
    if not sys.stdout.isatty():
        for name in cache.devices:
            say(name)
        return
    from rich.text import Text
    from rich.tree import Tree

    from gpuiso.cli.render.console import make_console

    trees: dict[str, Tree] = {}
    for found in cache.devices.values():
        kind = found.file.spec.kind
        tree = trees.setdefault(kind, Tree(Text(kind, style="bold")))
        tree.add(Text(found.device.name).append(f"  {one_line(found.file.path)}", style="dim"))
    for tree in trees.values():
        make_console().print(tree)


def _print_report(report: FileReport) -> None:
    if report.problems:
        say(f"{report.file}: refused", fg="red")
        for problem in report.problems:
            say(f"  {_place(problem.line, problem.column)}{problem}")
        return
    devices = "1 device" if report.devices == 1 else f"{report.devices} devices"
    say(f"{report.file}: accepted, {devices}", fg="yellow" if report.warnings else "green")
    for warning in report.warnings:
        where = f"{warning.where}: " if warning.where else ""
        say(f"  {warning.severity}: {where}{warning.message} [{warning.rule}]")


def _place(line: int | None, column: int | None) -> str:
    return "" if line is None else f"line {line}, column {column}: "


app.command()(generate)
app.command()(refresh)
