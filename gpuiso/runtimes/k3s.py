# SPDX-License-Identifier: Apache-2.0
"""k3s's template of its containerd's config (https://docs.k3s.io/advanced, "Configuring containerd").

k3s writes config.toml anew whenever it starts, from its own template or from ours. Ours takes over k3s's with
``{{ template "base" . }}`` and adds tables; what k3s's template defines cannot be defined a second time.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host
from gpuiso.runtimes.containerd import CRI_TABLE, RUNTIME_KEYS, runtime_settings
from gpuiso.runtimes.engine import Engine, Place, Problem, Request, Setting, exists, nvidia_runtime
from gpuiso.runtimes.formats import Document, Path, lookup
from gpuiso.runtimes.formats.template import TemplateDocument
from gpuiso.runtimes.keys import KeyTable

__all__ = ["K3S"]

DIRECTORY = "/var/lib/rancher/k3s/agent/etc/containerd"
GENERATED = f"{DIRECTORY}/config.toml"
#: Templates of files of version 2 (containerd 1.7) and 3 (containerd 2).
TEMPLATES = {2: f"{DIRECTORY}/config.toml.tmpl", 3: f"{DIRECTORY}/config-v3.toml.tmpl"}
_BASE = '{{ template "base" . }}\n'
_RUNTIMES: Path = ("containerd", "runtimes")
#: Where k3s looks for NVIDIA's runtimes when it starts (k3s, pkg/agent/containerd/runtimes.go).
_SEARCHED = (
    "/usr/local/nvidia/toolkit",
    "/opt/kwasm/bin",
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/bin",
    "/usr/local/bin",
)

KEYS = KeyTable(RUNTIME_KEYS)


def _generated(host: Host) -> dict[str, Any]:
    """What k3s wrote when it last started; nothing if it never did."""
    try:
        return tomllib.loads(host.text(GENERATED) or "")
    except (Unknown, tomllib.TOMLDecodeError):
        return {}


def _place(request: Request) -> Place:
    written = _generated(request.host).get("version")
    if request.file is not None:
        version = 3 if "v3" in request.file.rpartition("/")[2] else 2
    elif written in TEMPLATES:
        version = written
    else:
        version = 2 if exists(request.host, TEMPLATES[2]) and not exists(request.host, TEMPLATES[3]) else 3
    notes: tuple[str, ...] = ()
    if request.preset is not None:
        notes = (
            f"k3s adds the runtimes nvidia and nvidia-cdi itself when it finds NVIDIA's programs in"
            f" {', '.join(_SEARCHED[-2:])} or its other directories as it starts; --default-runtime of k3s makes one"
            " the default",
        )
    return Place(request.file or TEMPLATES[version], TemplateDocument, CRI_TABLE[version], _BASE, notes=notes)


def _found_by_k3s(program: str) -> bool:
    return program.rpartition("/")[0] in _SEARCHED


def _rootful(request: Request, place: Place) -> Iterator[Setting]:
    """Only where k3s does not find NVIDIA's runtime by itself; a second definition of one name is an error."""
    yield from _runtime(request, place, "nvidia", "nvidia-container-runtime")


def _cdi(request: Request, place: Place) -> Iterator[Setting]:
    yield from _runtime(request, place, "nvidia-cdi", "nvidia-container-runtime.cdi")


def _runtime(request: Request, place: Place, name: str, program: str) -> Iterator[Setting]:
    path, _ = nvidia_runtime(request.host, program)
    if not _found_by_k3s(path):
        yield from runtime_settings(name, path, _systemd_cgroup(request, place))


def _systemd_cgroup(request: Request, place: Place) -> bool | None:
    found = lookup(_generated(request.host), (*place.prefix, *_RUNTIMES, "runc", "options", "SystemdCgroup"))
    return found if isinstance(found, bool) else None


def _problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    runtimes = lookup(document.data, (*place.prefix, *_RUNTIMES)) or {}
    for name in runtimes:
        where: Path = (*place.prefix, *_RUNTIMES, name)
        program = lookup(runtimes, (name, "options", "BinaryName"))
        if isinstance(program, str) and program.startswith("/") and exists(request.host, program) is False:
            line = document.line((*where, "options", "BinaryName"))
            yield Problem("warning", f"runtime {name}: there is no {program}", place.file, line)
        if name in ("nvidia", "nvidia-cdi") and isinstance(program, str) and _found_by_k3s(program):
            yield Problem(
                "error",
                f"runtime {name}: k3s defines it itself when it finds {program}, and with two definitions containerd"
                " does not start; give this one another name, or leave it to k3s",
                place.file,
                document.line(where),
            )


K3S = Engine(
    name="k3s",
    title="k3s",
    keys=KEYS,
    presets={"rootful": _rootful, "cdi": _cdi},
    place=_place,
    problems=_problems,
    services=("k3s.service", "k3s-agent.service"),
    restart_says="containers go on running",
)
