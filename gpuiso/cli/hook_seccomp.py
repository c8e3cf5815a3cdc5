# SPDX-License-Identifier: Apache-2.0
"""``gpuiso hook seccomp``: which ioctls a container may use."""

from __future__ import annotations

import enum
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuiso.cli.render.plain import plain
from gpuiso.cli.source import MOST_OF_CONFIG, read_source
from gpuiso.errors import BadInput

if TYPE_CHECKING:
    from gpuiso.oci.seccomp import Profile

__all__ = ["seccomp"]


class ProfileName(enum.StrEnum):
    """What the container is for."""

    COMPUTE = "compute"
    UTILITY = "utility"
    GRAPHICS = "graphics"


def seccomp(
    profile: Annotated[
        ProfileName, typer.Option("--profile", help="utility: NVML; compute: CUDA as well; graphics: and drawing.")
    ] = ProfileName.COMPUTE,
    merge: Annotated[
        str | None,
        typer.Option("--merge", metavar="FILE", help="A seccomp profile, or an OCI config.json that has one."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Write it there in one step instead of printing it.")
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List what is admitted, by name.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Errors as a JSON object; the profile is JSON in any case.")
    ] = False,
) -> None:
    """Print seccomp rules that admit the ioctls of GPU work.

    Of all ioctls they admit those that GPU work and ordinary programs need. Alone they are a fragment. With --merge
    they take the place of what a whole profile says of ioctl.

    A filter sees numbers: not the device, and nothing of what RM_CONTROL is asked to do. docs/config.md says more.

    \b
    Examples:
      gpuiso hook seccomp --profile compute --merge /usr/share/containers/seccomp.json --output /etc/gpuiso/seccomp.json
      podman run --security-opt seccomp=/etc/gpuiso/seccomp.json …
      gpuiso hook seccomp --profile utility --list

    \b
    Exit codes: 0 done; 2 wrong usage or a bad profile; 3 not permitted; 4 no such file; 7 it could not be written.
    """
    from gpuiso.oci.files import replace_file
    from gpuiso.oci.seccomp import admits, fragment

    if names:
        for one in admits(profile.value):
            print(f"0x{one.number:08x}  {one.name}")
        return
    document = {"syscalls": fragment(profile.value)} if merge is None else _merged(merge, profile.value)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    replace_file(output, text.encode())
    print(plain(f"{output}: written"))


def _merged(path: str, profile: Profile) -> dict[str, Any]:
    from gpuiso.oci.config import parse_config
    from gpuiso.oci.seccomp import merge, parse_profile

    text = read_source(path, most=MOST_OF_CONFIG)
    if not _is_oci_config(text):
        return merge(parse_profile(text, path), profile, path)
    config = parse_config(text, path)
    inner = (config.get("linux") or {}).get("seccomp")
    if inner is None:
        raise BadInput("linux.seccomp is missing: there is nothing to merge with", file=path)
    config["linux"]["seccomp"] = merge(parse_profile(json.dumps(inner), path), profile, path)
    return config


def _is_oci_config(text: str) -> bool:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False  # parse_profile says what is wrong
    return isinstance(document, dict) and "ociVersion" in document
