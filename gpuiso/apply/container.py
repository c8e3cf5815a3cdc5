# SPDX-License-Identifier: Apache-2.0
"""The cgroup of a container, by the id that its engine gave it or its name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuiso.errors import BadInput, NotFound, NotSupported
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host

__all__ = ["container_cgroup"]

_WORD = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_ID = re.compile(r"[0-9a-f]{12,64}")
_ENGINES = ("docker", "podman", "nerdctl")
_DEPTH = 12  # levels of the tree that are searched; kubelet's pods are five deep


def container_cgroup(host: Host, name: str) -> str:
    """The cgroup that the engine made for it (not one that the container made inside).

    An id is looked for in the names of cgroups: ``docker-ID.scope``, ``libpod-ID.scope``, ``cri-containerd-ID.scope``,
    ``/docker/ID``. A name is asked of the engines.

    :raises NotFound: no such container runs.
    """
    if not _WORD.fullmatch(name):
        raise BadInput(f"{name!r} is neither the id nor the name of a container")
    if _ID.fullmatch(name):
        found = sorted(set(_search(host, name)))
        if len(found) > 1:
            raise BadInput(f"{name} begins the id of more than one container: {', '.join(found)}")
        if found:
            return found[0]
    for engine in _ENGINES:
        known = host.command((engine, "inspect", "--format", "{{.Id}} {{.State.Pid}}", name))
        words = known.stdout.split() if known is not None and known.exit == 0 else []
        if len(words) == 2 and words[1].isdigit() and words[1] != "0":
            return min(_search(host, words[0]), default=None) or _of_pid(host, int(words[1]))
    raise NotFound(f"no running container {name}", hint="docker ps, or podman ps, shows those there are")


def _of_pid(host: Host, pid: int) -> str:
    places = process.cgroups(host, pid)
    found = places.get("") if host.cgroup_mode != "legacy" else places.get("devices")
    if found is None:
        raise NotSupported(f"process {pid} is in no cgroup that filters devices")
    return found


def _search(host: Host, container: str) -> Iterator[str]:
    """Cgroups whose name holds the id as a whole word or the beginning of one, the topmost of each branch."""
    word = re.compile(rf"(^|[-:]){container}[0-9a-f]*(\.scope)?$")
    for controller in ("", "devices"):
        mount = cgroup_mount(host, controller)
        if mount is None:
            continue
        pending = [("", 0)]
        for path, depth in pending:  # grows while it is gone through
            for name in host.listdir(mount + path) or ():
                below = f"{path}/{name}"
                if word.search(name) and not name.startswith("libpod-conmon"):
                    yield below
                elif depth < _DEPTH and "." not in name.removesuffix(".slice").removesuffix(".service"):
                    pending.append((below, depth + 1))
