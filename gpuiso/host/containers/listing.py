# SPDX-License-Identifier: Apache-2.0
"""All containers of a host, whatever runs them, found by id, by name and by cgroup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from gpuiso.errors import NotFound, Unknown
from gpuiso.host import process
from gpuiso.host.cgroup_members import CgroupMembers
from gpuiso.host.containers.cgroup_names import CgroupName, container_in_path
from gpuiso.host.containers.containerd import containerd_tasks
from gpuiso.host.containers.docker import docker_containers
from gpuiso.host.containers.model import Container
from gpuiso.host.containers.runtimes import runtime_containers
from gpuiso.host.containers.state_files import StateFiles
from gpuiso.host.protocol import Host

__all__ = ["Containers", "find_containers"]

SHORTEST_PREFIX = 3  # digits of an id that are enough to name it
_LISTED = 8  # candidates in a message
_TRIED = 4  # processes of a container that are asked whether they are its first


@dataclass(frozen=True, slots=True)
class Containers:
    """``missing`` says what could not be read and why, by path."""

    all: tuple[Container, ...]
    missing: Mapping[str, str]
    _by_cgroup: Mapping[str, Container]

    def at(self, places: Iterable[str]) -> Container | None:
        """The container that a process with these cgroups is in; of nested ones the innermost."""
        for path in places:
            while path:
                found = self._by_cgroup.get(path)
                if found is not None:
                    return found
                path = path.rpartition("/")[0]
        return None

    def find(self, word: str) -> Container:
        """The container with that id or name, or with an id that begins so (3 digits at least).

        A name of Kubernetes may be given without its first parts.

        :raises NotFound: there is none, or more than one.
        """
        exact = [container for container in self.all if container.id == word]
        for matches in (exact, self._named(word), self._short(word), self._beginning(word)):
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise NotFound(f"{word!r} names {len(matches)} containers: {_listed(matches)}")
        raise NotFound(f"no container {word!r}", hint=self._hint())

    def _named(self, word: str) -> list[Container]:
        return [container for container in self.all if container.name == word]

    def _short(self, word: str) -> list[Container]:
        return [each for each in self.all if each.name is not None and each.name.endswith(f"/{word}")]

    def _beginning(self, word: str) -> list[Container]:
        if len(word) < SHORTEST_PREFIX:
            return []
        return [container for container in self.all if container.id.startswith(word)]

    def _hint(self) -> str | None:
        known = [container for container in self.all if not container.sandbox]
        parts = [f"there are {_listed(known)}" if known else "no container was found at all"]
        closed = [path for path, why in self.missing.items() if why.startswith("not permitted")]
        if closed:
            parts.append(f"not permitted to look at {', '.join(closed[:3])}: root sees more")
        return "; ".join(parts)


def _listed(containers: list[Container]) -> str:
    running_first = sorted(containers, key=lambda each: (not each.running, each.short))
    words = [f"{each.name} ({each.id[:12]}, {each.engine})" if each.name else each.id for each in running_first]
    more = len(words) - _LISTED
    return ", ".join(words[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def find_containers(host: Host, members: CgroupMembers) -> Containers:
    """What all engines know, and beside that what the cgroups of ``members`` are named after.

    Never raises for what cannot be read: see :attr:`Containers.missing`.
    """
    files = StateFiles(host)
    found: dict[tuple[str, int | None], Container] = {}
    for container in _known(files):
        key = (container.id, container.owner)  # two users may give the same id
        found[key] = _completed(found[key], container) if key in found else container
    containers = _placed(host, found.values(), members)
    by_cgroup = {each.cgroup: each for each in containers if each.cgroup is not None}
    return Containers(containers, files.missing, by_cgroup)


def _known(files: StateFiles) -> Iterator[Container]:
    yield from docker_containers(files)
    yield from containerd_tasks(files)
    yield from runtime_containers(files)


def _completed(container: Container, other: Container) -> Container:
    """What one source knows, with what only the other does."""
    missing = {
        field.name: getattr(other, field.name) for field in fields(Container) if getattr(container, field.name) is None
    }
    return replace(container, **missing)


def _placed(host: Host, known: Iterable[Container], members: CgroupMembers) -> tuple[Container, ...]:
    """The containers with what cgroups tell of them, and those that nothing but a cgroup tells of."""
    names = {name.id: name for name in _named_cgroups(members)}
    found = []
    for container in known:
        name = names.pop(container.id, None)
        if name is not None and (container.pid is None or container.cgroup is None):
            pid = container.pid or _first(host, members.below(name.path))
            container = replace(container, pid=pid, cgroup=container.cgroup or name.path)
        found.append(container)
    for name in names.values():
        engine = name.engine or ("kubernetes" if "kubepods" in name.path else "unknown")
        found.append(Container(name.id, engine, pid=_first(host, members.below(name.path)), cgroup=name.path))
    return tuple(found)


def _named_cgroups(members: CgroupMembers) -> Iterable[CgroupName]:
    """The containers that cgroups with processes are named after."""
    seen = {path for paths in members.places.values() for path in paths}
    return (name for name in map(container_in_path, seen) if name is not None)


def _first(host: Host, pids: tuple[int, ...]) -> int | None:
    """The process that is 1 in a pid namespace of its own, else the one with the lowest number."""
    for pid in pids[:_TRIED]:
        try:
            numbers = process.status(host, pid).nspid
        except (NotFound, Unknown):
            continue
        if len(numbers) > 1 and numbers[-1] == 1:
            return pid
    return pids[0] if pids else None
