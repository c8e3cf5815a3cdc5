# SPDX-License-Identifier: Apache-2.0
"""``gpuiso hook inject``: the hook in an OCI bundle's config."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated

import typer

from gpuiso.cli.source import MOST_OF_CONFIG, read_source
from gpuiso.errors import UsageError

__all__ = ["inject"]

# The hook compares a GPU with the names of its table letter by letter (gpuiso.hookset.tables makes them): there are
# no beginnings of a UUID in it, no capital letters and no leading zeros.
_NUMBER = r"(?:0|[1-9][0-9]*)"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_GPU = re.compile(
    rf"(?:(?:nvidia|amd|intel):)?{_NUMBER}|GPU-{_UUID}|GPU-[0-9a-f]{{16}}|MIG-{_UUID}|MIG-GPU-{_UUID}(?:/{_NUMBER}){{2}}"
    r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
)


def inject(
    config: Annotated[str, typer.Argument(metavar="CONFIG.json", help="The bundle's config.")],
    write: Annotated[bool, typer.Option("--write", help="Change the file. Default: print what it would be.")] = False,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="NAME", help="Hold it to this policy: a file of policy.d without its ending."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="LIST",
            help="Leave it these GPUs only: indices, whole UUIDs, PCI addresses, with commas between; all; none.",
        ),
    ] = None,
    gpu_max: Annotated[
        str | None,
        typer.Option("--gpu-max", metavar="'QUOTA PERIOD'", help="Its GPU time in µs: '50000 100000' is half."),
    ] = None,
    grants: Annotated[
        bool, typer.Option("--grants", help="Hold it to the grants of policy.d, if to nothing else.")
    ] = False,
    path: Annotated[str, typer.Option("--path", metavar="FILE", help="Where the program is.")] = "/usr/bin/gpuiso-hook",
) -> None:
    """Put the hook into a bundle's config, for a bare runc or crun.

    What is asked for must be written as the hook reads it. Whether the host that starts the container has such a GPU or
    policy is not looked up.

    \b
    Examples:
        gpuiso hook inject --gpus 0,1 bundle/config.json
        gpuiso hook inject --write --policy half-a-gpu --gpu-max '50000 100000' bundle/config.json

    \b
    Exit codes: 0 done; 2 wrong usage or a bad config; 3 not permitted; 4 no such file; 7 it could not be written.
    """
    from gpuiso.hookset.definitions import add_hooks
    from gpuiso.hookset.places import check_absolute
    from gpuiso.oci.config import parse_config
    from gpuiso.oci.files import replace_file

    check_absolute("--path", path)
    options = _options(policy, gpus, gpu_max, grants=grants)
    text = read_source(config, most=MOST_OF_CONFIG)
    edited = json.dumps(add_hooks(parse_config(text, config), options, path), indent=2) + "\n"
    if write:
        replace_file(config, edited.encode())
    else:
        sys.stdout.write(edited)


def _options(policy: str | None, gpus: str | None, gpu_max: str | None, *, grants: bool) -> list[str]:
    """The hook's own options. A container that cannot start because of a slip is told of here, not at its start."""
    if policy is None and gpus is None and gpu_max is None and not grants:
        raise UsageError("nothing to hold the container to", hint="give --policy, --gpus, --gpu-max or --grants")
    if policy is not None:
        _check_policy(policy)
    if gpus is not None:
        _check_gpus(gpus)
    if gpu_max is not None:
        _check_share(gpu_max)
    options = []
    for name, value in (("--policy", policy), ("--gpus", gpus), ("--gpu-max", gpu_max)):
        options += [name, value] if value is not None else []
    return options


def _check_policy(name: str) -> None:
    from gpuiso.cdi.names import name_fault
    from gpuiso.hook.errors import HookError
    from gpuiso.hook.tables import policy_file_name

    hint = "NAME is a file of /etc/gpuiso/policy.d without its ending"
    try:
        policy_file_name(name)
    except HookError as error:
        raise UsageError(f"--policy: {error}", hint=hint) from error
    if fault := name_fault(name):
        raise UsageError(f"--policy: a policy is a CDI device too: {fault}", hint=hint)


def _check_gpus(text: str) -> None:
    words = [word.strip() for word in text.split(",")]
    if words in (["all"], ["none"]):
        return
    for word in words:
        if not _GPU.fullmatch(word):
            hint = "write all, none, or with commas between: 0, nvidia:0, 0000:06:00.0, a whole UUID (GPU-…, MIG-…)"
            wrong = "stands alone" if word in ("all", "none") else "is no name that the hook has for a GPU"
            raise UsageError(f"--gpus: {word!r} {wrong}", hint=hint)


def _check_share(text: str) -> None:
    from gpuiso.hook.errors import HookError
    from gpuiso.hook.governed import smallest_share

    try:
        smallest_share([text])
    except HookError as error:
        raise UsageError(f"--gpu-max: {error}", hint="write it as cpu.max does: '50000 100000', or max") from error
