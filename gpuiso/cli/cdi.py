# SPDX-License-Identifier: Apache-2.0
"""``gpuiso cdi``: list, validate, inject, generate and refresh Container Device Interface specs."""

from __future__ import annotations

import enum
import json
import posixpath
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.render.objects import print_object
from gpuiso.errors import BadInput, GpuisoError, NotFound, Unknown, UsageError

if TYPE_CHECKING:
    from gpuiso.cdi.generate import Generated, Options
    from gpuiso.cdi.refresh import Refreshed
    from gpuiso.cdi.report import FileReport
    from gpuiso.host.protocol import Host

__all__ = ["app"]

app = typer.Typer(
    name="cdi",
    no_args_is_help=True,
    help="Container Device Interface specs: list, check, inject and generate them.",
)

SpecDirs = Annotated[
    list[str] | None,
    typer.Option(
        "--spec-dir",
        metavar="DIR",
        help="A directory of specs; of several the later wins. Default: /etc/cdi, then /var/run/cdi.",
    ),
]
Record = Annotated[
    str | None, typer.Option("--from", metavar="RECORD", help="Ask a host record instead of this machine.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class ModeName(enum.StrEnum):
    """What to make a spec of."""

    AUTO = "auto"
    NVML = "nvml"
    MANAGEMENT = "management"
    IMEX = "imex"
    GDS = "gds"
    MOFED = "mofed"
    GDRCOPY = "gdrcopy"
    NVSWITCH = "nvswitch"
    WSL = "wsl"
    AMD = "amd"
    INTEL = "intel"


class StrategyName(enum.StrEnum):
    """How devices are called."""

    INDEX = "index"
    UUID = "uuid"
    TYPE_INDEX = "type-index"


class HooksName(enum.StrEnum):
    """Whose hook program the spec names."""

    AUTO = "auto"
    GPUISO = "gpuiso"
    NVIDIA = "nvidia"
    NONE = "none"


class FormatName(enum.StrEnum):
    """How the spec is written."""

    YAML = "yaml"
    JSON = "json"


ModeOption = Annotated[
    ModeName, typer.Option("--mode", help="auto takes the vendor of the GPUs here, NVIDIA before AMD before Intel.")
]
StrategyOption = Annotated[
    list[StrategyName] | None,
    typer.Option(
        "--device-name-strategy",
        help="0 and 0:1 by index, gpu0 and mig0:1 by type-index; give it again for more. Default: index and uuid.",
    ),
]
VendorOption = Annotated[str | None, typer.Option("--vendor", help="Default: nvidia.com, amd.com, … as the mode asks.")]
ClassOption = Annotated[str | None, typer.Option("--class", help="Default: gpu, imex-channel, … as the mode asks.")]
DriverRoot = Annotated[str, typer.Option("--driver-root", metavar="DIR", help="Where the driver's files lie.")]
DevRoot = Annotated[str, typer.Option("--dev-root", metavar="DIR", help="Where the driver's device nodes lie.")]
HooksOption = Annotated[
    HooksName,
    typer.Option(
        "--hooks",
        help="auto: nvidia if nvidia-cdi-hook or nvidia-ctk is installed, else none. gpuiso: not in this version.",
    ),
]
HookPath = Annotated[
    str | None, typer.Option("--nvidia-cdi-hook-path", metavar="FILE", help="NVIDIA's hook program, if not on PATH.")
]
LdconfigPath = Annotated[
    str | None, typer.Option("--ldconfig-path", metavar="FILE", help="The ldconfig that NVIDIA's hook runs.")
]
NoAll = Annotated[bool, typer.Option("--no-all-device", help="Leave out the device called all.")]
NoGids = Annotated[
    bool,
    typer.Option("--no-additional-gids", help="Keeps the spec readable for podman 4: groups need CDI 0.7.0."),
]

NoNumbers = Annotated[
    bool,
    typer.Option(
        "--no-numbers",
        help="Leave the numbers of nodes to the engine: they cannot become stale, but the nodes must exist.",
    ),
]


def _directories(spec_dir: list[str] | None) -> tuple[str, ...]:
    from gpuiso.cdi.cache import DEFAULT_SPEC_DIRS

    return tuple(spec_dir) if spec_dir else DEFAULT_SPEC_DIRS


@app.command("list")
def list_devices(spec_dir: SpecDirs = None, record: Record = None, as_json: Json = False) -> None:
    """List the devices that containers can ask for.

    Exit 1 if a file cannot be used or two files of one directory define the same device; such devices are
    left out.

    \b
    Examples:
        gpuiso cdi list
        gpuiso cdi list --spec-dir /etc/cdi --spec-dir /var/run/cdi --json
    """
    from gpuiso.cdi.cache import load
    from gpuiso.cdi.report import list_document
    from gpuiso.host import open_host

    cache = load(open_host(record), _directories(spec_dir))
    if as_json:
        print_object(list_document(cache))
    else:
        for name in cache.devices:
            typer.echo(name)
        for message in dict.fromkeys(error.message for error in cache.errors):
            typer.secho(f"error: {message}", err=True, fg="red")
        if not cache.devices and not cache.errors:
            typer.echo(f"no CDI devices in {' or '.join(cache.directories)}", err=True)
    raise typer.Exit(1 if cache.errors else 0)


@app.command()
def validate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE|DIR]...", help="What to check. Default: /etc/cdi and /var/run/cdi."),
    ] = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Say whether the container engines accept a spec, and warn of what goes wrong although they do.

    Directories are also checked together: shadowed and conflicting devices are named.
    Exit 0: accepted, nothing to say. 1: accepted with warnings. 2: a file is refused.

    \b
    Examples:
        gpuiso cdi validate /etc/cdi/nvidia.yaml
        gpuiso cdi validate /etc/cdi /var/run/cdi --json
    """
    from gpuiso.cdi.engines import installed_engines
    from gpuiso.cdi.report import validate_document, validate_paths
    from gpuiso.host import open_host

    host = open_host(record)
    wanted = tuple(paths) if paths else tuple(path for path in _directories(None) if _there(host, path))
    reports = validate_paths(host, wanted, installed_engines(host))
    if as_json:
        print_object(validate_document(reports))
    else:
        for report in reports:
            _print_report(report)
        if not reports:
            typer.echo("no CDI specs to check", err=True)
    if any(report.problems for report in reports):
        raise typer.Exit(2)
    severities = {warning.severity for report in reports for warning in report.warnings}
    raise typer.Exit(1 if severities & {"error", "warning"} else 0)


@app.command()
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
    """Add CDI devices to an OCI runtime config, as a container engine would.

    Names that no spec defines: exit 4, all of them are listed, nothing is written.

    \b
    Examples:
        gpuiso cdi inject config.json nvidia.com/gpu=0 > edited.json
        runc spec && gpuiso cdi inject --write config.json nvidia.com/gpu=all
    """
    from gpuiso.cdi.cache import load
    from gpuiso.cdi.inject import inject as inject_devices
    from gpuiso.host import open_host
    from gpuiso.oci.config import parse_config
    from gpuiso.oci.files import replace_file

    if write and config == "-":
        raise UsageError("--write needs a file: standard input cannot be replaced")
    host = open_host()
    document = parse_config(_read_config(host, config), config)
    edited = inject_devices(host, load(host, _directories(spec_dir)), document, names)
    text = json.dumps(edited, indent=2, ensure_ascii=False) + "\n"
    if write:
        replace_file(config, text.encode())
    else:
        sys.stdout.write(text)


def _read_config(host: Host, path: str) -> str:
    data = sys.stdin.buffer.read() if path == "-" else host.read(path)
    if data is None:
        raise NotFound(f"{path}: no such file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}", file=path) from None


def _there(host: Host, path: str) -> bool:
    try:
        return host.stat(path) is not None
    except Unknown:
        return False


def _print_report(report: FileReport) -> None:
    if report.problems:
        typer.secho(f"{report.file}: refused", fg="red")
        for problem in report.problems:
            typer.echo(f"  {_place(problem.line, problem.column)}{problem}")
        return
    devices = "1 device" if report.devices == 1 else f"{report.devices} devices"
    typer.secho(f"{report.file}: accepted, {devices}", fg="yellow" if report.warnings else "green")
    for warning in report.warnings:
        where = f"{warning.where}: " if warning.where else ""
        typer.echo(f"  {warning.severity}: {where}{warning.message} [{warning.rule}]")


def _place(line: int | None, column: int | None) -> str:
    return "" if line is None else f"line {line}, column {column}: "


@app.command()
def generate(
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Write here, in one step. Default: standard output.")
    ] = None,
    file_format: Annotated[
        FormatName | None, typer.Option("--format", help="Default: what the name of the output says, else yaml.")
    ] = None,
    strategy: StrategyOption = None,
    mode: ModeOption = ModeName.AUTO,
    vendor: VendorOption = None,
    device_class: ClassOption = None,
    driver_root: DriverRoot = "/",
    dev_root: DevRoot = "/",
    hooks: HooksOption = HooksName.AUTO,
    hook_path: HookPath = None,
    ldconfig_path: LdconfigPath = None,
    no_all_device: NoAll = False,
    no_additional_gids: NoGids = False,
    no_numbers: NoNumbers = False,
    record: Record = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: the spec and the messages.")] = False,
) -> None:
    """Make a CDI spec of the GPUs here, from NVML where it answers and from /proc and sysfs where not.

    Nodes that are not there yet are written with the numbers that their driver registered, and named.

    \b
    Examples:
        gpuiso cdi generate --output /etc/cdi/nvidia.yaml
        gpuiso cdi generate --mode management --format json
        gpuiso cdi generate --from host.tar.gz --hooks none
    """
    from dataclasses import replace

    from gpuiso.cdi.emit import to_json, to_yaml
    from gpuiso.cdi.generate import generate as generate_spec
    from gpuiso.cdi.refresh import make_directory
    from gpuiso.host import open_host
    from gpuiso.oci.files import replace_file

    options = _options(mode, strategy, vendor, device_class, driver_root, dev_root, hooks, hook_path, ldconfig_path)
    options = replace(
        options, all_device=not no_all_device, additional_gids=not no_additional_gids, numbers=not no_numbers
    )
    generated = generate_spec(open_host(record), options)
    if file_format is None and output is not None:
        file_format = {".json": FormatName.JSON, ".yaml": FormatName.YAML}.get(posixpath.splitext(output)[1])
    text = to_json(generated.spec) if file_format == FormatName.JSON else to_yaml(generated.spec)
    if output is not None:
        make_directory(posixpath.dirname(output) or ".")
        replace_file(output, text.encode())
    if as_json:
        print_object(
            {
                "gpuiso": "cdi-generate/1",
                "output": output,
                "messages": list(generated.messages),
                "spec": generated.spec.to_document(),
            }
        )
        return
    if output is None:
        sys.stdout.write(text)
    _print_messages(generated)


@app.command()
def refresh(
    directory: Annotated[
        str, typer.Option("--directory", metavar="DIR", help="Where the specs are kept.")
    ] = "/var/run/cdi",
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: follow driver loads, hotplug and MIG changes until stopped.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=1, help="Seconds between looks for changes that send no uevent.")
    ] = 30,
    strategy: StrategyOption = None,
    mode: ModeOption = ModeName.AUTO,
    driver_root: DriverRoot = "/",
    dev_root: DevRoot = "/",
    hooks: HooksOption = HooksName.AUTO,
    hook_path: HookPath = None,
    ldconfig_path: LdconfigPath = None,
    no_additional_gids: NoGids = False,
    no_numbers: NoNumbers = False,
    as_json: Json = False,
) -> None:
    """Bring the specs in a directory up to date: nvidia.yaml, amd.yaml, intel.yaml as the GPUs here ask.

    A file is written only when it differs, and in one step. With --watch, one line (or JSON object) a change.

    \b
    Examples:
        gpuiso cdi refresh
        gpuiso cdi refresh --watch --interval 10
    """
    from dataclasses import replace

    from gpuiso.cdi.refresh import refresh as refresh_specs
    from gpuiso.cdi.refresh import uevents
    from gpuiso.cdi.refresh import watch as watch_specs
    from gpuiso.host import open_host

    options = _options(mode, strategy, None, None, driver_root, dev_root, hooks, hook_path, ldconfig_path)
    options = replace(options, additional_gids=not no_additional_gids, numbers=not no_numbers)
    if not watch:
        _print_refreshed(refresh_specs(open_host(), options, directory), as_json=as_json)
        return
    last = ""
    for outcome in watch_specs(open_host, options, directory, uevents(interval)):
        if not isinstance(outcome, GpuisoError):
            last = ""
            if any(one.changed for one in outcome):
                _print_refreshed(outcome, as_json=as_json)
        elif outcome.message != last:
            last = outcome.message
            typer.echo(f"gpuiso: {last}", err=True)
        sys.stdout.flush()


def _options(
    mode: ModeName,
    strategy: list[StrategyName] | None,
    vendor: str | None,
    device_class: str | None,
    driver_root: str,
    dev_root: str,
    hooks: HooksName,
    hook_path: str | None,
    ldconfig_path: str | None,
) -> Options:
    from gpuiso.cdi.generate import Options

    for name, place in (("--driver-root", driver_root), ("--dev-root", dev_root)):
        if not place.startswith("/"):
            raise UsageError(f"{name} {place!r} must be an absolute path")
    return Options(
        mode=mode.value,
        vendor=vendor,
        device_class=device_class,
        driver_root=posixpath.normpath(driver_root),
        dev_root=posixpath.normpath(dev_root),
        hooks=hooks.value,
        hook_path=hook_path,
        ldconfig_path=ldconfig_path,
        strategies=tuple(dict.fromkeys(one.value for one in strategy)) if strategy else ("index", "uuid"),
    )


def _print_refreshed(refreshed: tuple[Refreshed, ...], *, as_json: bool) -> None:
    if as_json:
        files = [
            {
                "file": one.file,
                "changed": one.changed,
                "devices": len(one.generated.spec.devices),
                "messages": list(one.generated.messages),
            }
            for one in refreshed
        ]
        print_object({"gpuiso": "cdi-refresh/1", "files": files})
        return
    for one in refreshed:
        state = "written" if one.changed else "up to date"
        typer.echo(f"{one.file}: {state}, {len(one.generated.spec.devices)} devices")
        _print_messages(one.generated)


def _print_messages(generated: Generated) -> None:
    for message in generated.messages:
        typer.secho(f"warning: {message}", err=True, fg="yellow")
