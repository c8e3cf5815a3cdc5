# SPDX-License-Identifier: Apache-2.0
"""``gpuiso cdi generate`` and ``gpuiso cdi refresh``: specs of the GPUs here."""

from __future__ import annotations

import contextlib
import enum
import os
import posixpath
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.numbers import seconds
from gpuiso.cli.render.objects import print_file, print_object
from gpuiso.cli.render.plain import one_line
from gpuiso.cli.stopping import Stopped
from gpuiso.errors import GpuisoError, UsageError

if TYPE_CHECKING:
    from gpuiso.cdi.generate import Generated, Options
    from gpuiso.cdi.refresh import Refreshed
    from gpuiso.errors import NotSupported, Unknown

__all__ = ["Json", "Record", "generate", "refresh", "say"]

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
VendorOption = Annotated[
    str | None,
    typer.Option(
        "--vendor", metavar="NAME", help="Of the spec's kind. Default: nvidia.com, amd.com, … as the mode asks."
    ),
]
ClassOption = Annotated[
    str | None,
    typer.Option("--class", metavar="NAME", help="Of the spec's kind. Default: gpu, imex-channel, … as the mode asks."),
]
DriverRoot = Annotated[str, typer.Option("--driver-root", metavar="DIR", help="Where the driver's files lie.")]
DevRoot = Annotated[str, typer.Option("--dev-root", metavar="DIR", help="Where the driver's device nodes lie.")]
HooksOption = Annotated[
    HooksName,
    typer.Option(
        "--hooks",
        help="auto: gpuiso if gpuiso-hook is installed, nvidia if nvidia-cdi-hook or nvidia-ctk is, else none.",
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
    typer.Option(
        "--no-additional-gids", help="Leave out supplementary groups: they need CDI 0.7.0, which podman 4 cannot read."
    ),
]

Grants = Annotated[
    bool,
    typer.Option("--grants", help="Have gpuiso-hook hold every container with such a device to /etc/gpuiso/policy.d."),
]
NoNumbers = Annotated[
    bool,
    typer.Option(
        "--no-numbers",
        help="Leave the numbers of nodes to the engine: they cannot become stale, but the nodes must exist.",
    ),
]


def generate(
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write here, in one step (into a device or FIFO); a missing directory is made, not those above it."
            " Default: standard output.",
        ),
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
    grants: Grants = False,
    record: Record = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: the spec and the messages.")] = False,
) -> None:
    """Make a CDI spec of the GPUs here.

    They are known from NVML where it answers, and from /proc and sysfs where not. Nodes that are not there yet are
    written with the numbers that their driver registered, and named.

    \b
    Examples:
        gpuiso cdi generate --output /etc/cdi/nvidia.yaml
        gpuiso cdi generate --mode management --format json
        gpuiso cdi generate --from host.tar.gz --hooks none

    \b
    Exit codes: 0 done, warnings included; 2 wrong usage, or an output that cannot be replaced; 3 not permitted;
    4 no such record, or no GPU for that mode; 5 no GPU to make a spec of, or not known; 7 it could not be written.
    """
    from dataclasses import replace

    from gpuiso.cdi.emit import to_json, to_yaml
    from gpuiso.cdi.generate import generate as generate_spec
    from gpuiso.host import open_host
    from gpuiso.oci.files import write_output

    options = _options(mode, strategy, vendor, device_class, driver_root, dev_root, hooks, hook_path, ldconfig_path)
    options = replace(
        options,
        all_device=not no_all_device,
        additional_gids=not no_additional_gids,
        numbers=not no_numbers,
        grants=grants,
    )
    generated = generate_spec(open_host(record), options)
    if file_format is None and output is not None:
        file_format = {".json": FormatName.JSON, ".yaml": FormatName.YAML}.get(posixpath.splitext(output)[1])
    text = to_json(generated.spec) if file_format == FormatName.JSON else to_yaml(generated.spec)
    if output is not None:
        _make_last_directory(posixpath.dirname(output))
        write_output(output, text.encode())
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
        print_file(text)
    _print_messages(generated)


def _make_last_directory(path: str) -> None:
    """/etc/cdi is often missing. More than one missing directory is a misspelt path: what writes there says so."""
    from gpuiso.cdi.refresh import make_directory

    if path and os.path.isdir(os.path.dirname(path.rstrip("/")) or "."):
        make_directory(path)


def refresh(
    directory: Annotated[
        str, typer.Option("--directory", metavar="DIR", help="Where the specs are kept.")
    ] = "/var/run/cdi",
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: follow driver loads, hotplug and MIG changes until stopped.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            parser=seconds(1),
            help="How often to look for changes that send no uevent.",
        ),
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
    grants: Grants = False,
    as_json: Json = False,
) -> None:
    """Bring the specs in a directory up to date.

    These are nvidia.yaml, amd.yaml and intel.yaml, as the GPUs here ask. A file is written only when it differs, and in
    one step. With --watch, one line (or JSON object) a change.

    \b
    Examples:
        gpuiso cdi refresh
        gpuiso cdi refresh --watch --interval 10

    \b
    Exit codes: 0 up to date, or a watch was stopped; 2 wrong usage, or another file defines the same devices;
    3 not permitted; 5 no GPU to make a spec of, or not known (a watch tells it and goes on); 7 it could not be written.
    """
    from dataclasses import replace

    from gpuiso.cdi.refresh import refresh as refresh_specs
    from gpuiso.cdi.refresh import uevents
    from gpuiso.cdi.refresh import watch as watch_specs
    from gpuiso.host import open_host

    options = _options(mode, strategy, None, None, driver_root, dev_root, hooks, hook_path, ldconfig_path)
    options = replace(options, additional_gids=not no_additional_gids, numbers=not no_numbers, grants=grants)
    if not watch:
        _print_refreshed(refresh_specs(open_host(), options, directory), as_json=as_json)
        return
    with contextlib.suppress(KeyboardInterrupt, Stopped):  # that is how a watch ends
        _tell_changes(watch_specs(open_host, options, directory, uevents(interval)), as_json=as_json)


def _tell_changes(outcomes: Iterable[tuple[Refreshed, ...] | NotSupported | Unknown], *, as_json: bool) -> None:
    last = ""
    for outcome in outcomes:
        if not isinstance(outcome, GpuisoError):
            last = ""
            if any(one.changed for one in outcome):
                _print_refreshed(outcome, as_json=as_json)
        elif outcome.message != last:
            last = outcome.message
            say(f"gpuiso: {last}", err=True)
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
        count = len(one.generated.spec.devices)
        say(f"{one.file}: {state}, {count} device{'' if count == 1 else 's'}")
        _print_messages(one.generated)


def _print_messages(generated: Generated) -> None:
    for message in generated.messages:
        say(f"warning: {message}", err=True, fg="yellow")


def say(text: str, *, err: bool = False, fg: str | None = None) -> None:
    """A line for people, coloured on a terminal. What came out of a file cannot steer it, nor feign another line."""
    typer.secho(one_line(text), err=err, fg=fg)
