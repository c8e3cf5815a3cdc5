# SPDX-License-Identifier: Apache-2.0
"""The configuration of NVIDIA's container toolkit, and what containers were made from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuiso.errors import NotFound, Unknown
from gpuiso.host.protocol import Host

__all__ = ["CONFIG", "ToolkitConfig", "in_user_namespace", "inspected", "runc_version", "toolkit_config"]

CONFIG = "/etc/nvidia-container-runtime/config.toml"
_IDENTITY = ["0", "0", "4294967295"]


@dataclass(frozen=True, slots=True)
class ToolkitConfig:
    """The keys of config.toml that decide about access; the toolkit's own defaults where one is not given."""

    path: str
    no_cgroups: bool
    mode: str
    accept_envvar: bool


def toolkit_config(host: Host, path: str = CONFIG) -> ToolkitConfig | None:
    """The toolkit's configuration, None if there is no such file.

    :raises Unknown: not readable, or no TOML of the toolkit's form.
    """
    text = host.text(path)
    if text is None:
        return None
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Unknown(path, f"no TOML: {error}") from error
    cli, runtime = _table(document, "nvidia-container-cli"), _table(document, "nvidia-container-runtime")
    return ToolkitConfig(
        path,
        no_cgroups=cli.get("no-cgroups") is True,
        mode=str(runtime.get("mode") or "auto"),
        accept_envvar=document.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is not False,
    )


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def inspected(host: Host, container: str) -> dict[str, Any] | None:
    """Docker's view of a container, None if it knows none of that id. :raises Unknown: Docker does not tell."""
    return host.docker_containers().get(container)


def in_user_namespace(host: Host, pid: int) -> bool:
    """Whether a process is in a user namespace that maps ids: rootless, nested or remapped.

    :raises NotFound: no such process.
    :raises Unknown: its maps cannot be read.
    """
    text = host.text(f"/proc/{pid}/uid_map")
    if text is None:
        raise NotFound(f"no process {pid} on {host.name}")
    return text.split() != _IDENTITY


def runc_version(host: Host) -> tuple[int, ...] | None:
    """The release of the runc that is installed, None if there is none. :raises Unknown: it does not tell."""
    result = host.command(("runc", "--version"))
    if result is None:
        return None
    match = re.search(r"runc version (\d{1,4})\.(\d{1,4})\.(\d{1,4})", result.stdout)
    if match is None:
        raise Unknown("runc --version", "it does not tell its version")
    return tuple(int(part) for part in match.groups())
