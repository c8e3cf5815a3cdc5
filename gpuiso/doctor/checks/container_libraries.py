# SPDX-License-Identifier: Apache-2.0
"""The driver's libraries inside a container: those of an old driver, or the image's own."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.checks.access_words import target_of
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.libraries import LIBCUDA, LIBNVIDIA_ML, DriverLibrary, find_library, library_at
from gpuiso.host.mounts import Mount, covering_mount, mounts

__all__: list[str] = []

STALE_LIBS = Rule(
    "GPU-DRV-STALE-CONTAINER-LIBS",
    "error",
    "The container still has the libraries of another driver",
    "a container or volume that lives on has libcuda of the driver before the update mounted into it",
    (
        "https://github.com/NVIDIA/nvidia-docker/issues/182",
        "https://github.com/NVIDIA/nvidia-docker/issues/365",
    ),
)
BAKED_IN = Rule(
    "GPU-LIBS-BAKED-IN-IMAGE",
    "error",
    "The image brings the driver's libraries along, in another version",
    "the image holds its own libcuda or libnvidia-ml, whose version is not that of the host's kernel module",
    (
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/371",
        "https://github.com/NVIDIA/nvidia-docker/issues/1699",
    ),
)


@process_check(STALE_LIBS, BAKED_IN)
def other_versions(subject: Subject) -> Iterator[Finding]:
    """The library a process of a container has mapped, or would get, against the loaded module."""
    loaded = subject.machine.inventory.driver_version
    if loaded is None or "/dev/nvidia-uvm" in subject.holds or not _has_own_root(subject):
        return
    libraries = _mapped(subject)
    if not libraries and subject.asked:
        libraries = _found(subject)
    wrong = [each for each in libraries if each.version not in (None, loaded) and "/compat/" not in each.file]
    if wrong:
        yield _finding(subject, loaded, wrong)


def _has_own_root(subject: Subject) -> bool:
    """Whether the process's libraries are others than the host's: not those of a service with a /tmp of its own."""
    if subject.container is not None:
        return True
    own, first = (covering_mount(mounts(subject.host, pid), "/") for pid in (subject.pid, 1))
    if own is None or first is None:
        return False
    return (own.fstype, own.source, own.root) != (first.fstype, first.source, first.root)


def _mapped(subject: Subject) -> list[DriverLibrary]:
    """:raises Unknown: the maps cannot be read."""
    names = [path for path in sorted(subject.mapped_files) if path.rsplit("/", 1)[-1].startswith(_STEMS)]
    found = (library_at(subject.host, path, f"/proc/{subject.pid}/root") or _by_name(path) for path in names)
    return list(found)


_STEMS = ("libcuda.so.", "libnvidia-ml.so.")


def _by_name(path: str) -> DriverLibrary:
    """A library that was deleted since: its name still tells the version."""
    return DriverLibrary(path, path, path.partition(".so.")[2] or None)


def _found(subject: Subject) -> list[DriverLibrary]:
    root = f"/proc/{subject.pid}/root"
    found = (find_library(subject.host, soname, root) for soname in (LIBCUDA, LIBNVIDIA_ML))
    return [library for library in found if library is not None]


def _mount(subject: Subject, file: str) -> Mount | None:
    """The mount that put a library into the container, None if it is part of the container's own root."""
    for mount in mounts(subject.host, subject.pid):
        inside = file == mount.point or file.startswith(mount.point.rstrip("/") + "/")
        if inside and mount.point != "/":
            return mount
    return None


def _finding(subject: Subject, loaded: str, wrong: list[DriverLibrary]) -> Finding:
    library = wrong[0]
    mount = _mount(subject, library.file)
    who = f"{subject.comm} (pid {subject.pid})"
    evidence = [
        Evidence("/proc/driver/nvidia/version", f"driver {loaded}"),
        *(Evidence(f"/proc/{subject.pid}/root{each.path}", f"leads to {each.file}") for each in wrong),
    ]
    refused = f"The module {loaded} turns such programs away: CUDA and nvidia-smi fail in it."
    if mount is not None:
        return STALE_LIBS.finding(
            f"The container of {who} has {library.file} of driver {library.version} mounted, from before the driver was"
            f" updated. {refused}",
            evidence=[*evidence, Evidence(f"/proc/{subject.pid}/mountinfo", f"{mount.source} on {mount.point}")],
            fix=[
                Fix(
                    "Create the container again, so that it gets the libraries of today's driver; a volume or CDI"
                    " specification that holds the old ones must be written anew first",
                    "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                )
            ],
            target=target_of(subject, None),
        )
    return BAKED_IN.finding(
        f"The image of {who} brings {library.file} of driver {library.version} along, and the host's driver is"
        f" {loaded}. {refused}",
        evidence=[*evidence, Evidence(f"/proc/{subject.pid}/mountinfo", f"no mount put {library.file} there")],
        fix=[
            Fix(
                "Build the image without the driver: the container runtime brings in the host's libraries",
                "apt-get purge -y 'libnvidia-compute-*' 'nvidia-driver-*' && rm -f"
                " /usr/lib/*-linux-gnu/lib{cuda,nvidia-*}.so.*",
            )
        ],
        target=target_of(subject, None),
    )
