# SPDX-License-Identifier: Apache-2.0
"""WSL 2: GPUs come through /dev/dxg, and the driver's libraries from Windows in /usr/lib/wsl/lib."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from gpuiso.doctor.checks.access_words import evidence_of, target_of
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.errors import Unknown
from gpuiso.gpu.libraries import LIBCUDA, find_library
from gpuiso.host.protocol import Host

__all__: list[str] = []

DXG = "/dev/dxg"
LIBRARIES = "/usr/lib/wsl/lib"

WSL_DXG = Rule(
    "GPU-WSL-DXG",
    "error",
    "WSL's GPU device or libraries are missing, hidden or overridden",
    "on WSL 2, /dev/dxg is missing or denied, or a Linux driver stands before the libraries of /usr/lib/wsl/lib",
    ("https://docs.nvidia.com/cuda/wsl-user-guide/", "https://github.com/NixOS/nixpkgs/issues/363357"),
)


def _is_wsl(host: Host) -> bool:
    return "microsoft" in host.kernel.lower()


def _kernel(host: Host) -> Evidence:
    return Evidence("/proc/sys/kernel/osrelease", host.kernel)


@machine_check(WSL_DXG)
def device_or_libraries(machine: Machine) -> Iterator[Finding]:
    """Windows gave the libraries of NVIDIA's driver; so there is a GPU that should be usable."""
    host = machine.host
    if not _is_wsl(host) or host.stat(f"{LIBRARIES}/{LIBCUDA}") is None:
        return
    given = Evidence(f"{LIBRARIES}/{LIBCUDA}", "exists: Windows has NVIDIA's driver")
    if host.stat(DXG) is None:
        yield WSL_DXG.finding(
            f"Windows shares NVIDIA's libraries with this WSL distribution, but {DXG} does not exist: no program"
            " reaches the GPU. GPU support may be off in .wslconfig, the distribution may run as WSL 1, or WSL"
            " may be too old.",
            evidence=[_kernel(host), given, Evidence(DXG, "does not exist")],
            fix=[
                Fix("In Windows, update WSL and start it again", "wsl.exe --update && wsl.exe --shutdown"),
                Fix("Look for gpuSupport=false under [wsl2] in .wslconfig of the Windows user"),
            ],
        )
        return
    library = find_library(host, LIBCUDA)
    if library is not None and not library.path.startswith(f"{LIBRARIES}/") and f"{LIBRARIES}/" not in library.file:
        yield WSL_DXG.finding(
            f"Programs get {library.path} of a Linux driver that was installed in this WSL distribution. It looks for a"
            f" kernel module, which WSL has not; libcuda of Windows' driver is in {LIBRARIES}.",
            title="A Linux driver hides the libraries of WSL",
            evidence=[_kernel(host), given, Evidence(library.path, f"leads to {library.file}")],
            fix=[
                Fix(
                    "Remove the Linux driver from the distribution (on Ubuntu; not tried here)",
                    "sudo apt-get purge 'libnvidia-compute-*' 'nvidia-driver-*' && sudo ldconfig",
                )
            ],
        )


@process_check(WSL_DXG)
def closed_to_the_process(subject: Subject) -> Iterator[Finding]:
    """A unit or container that does without /dev/dxg."""
    if not _is_wsl(subject.host) or subject.host.stat(DXG) is None:
        return
    answer = subject.access(DXG)
    gate = answer.denied_by
    if gate is None:
        if answer.verdict == "unknown":
            raise Unknown(f"access of pid {subject.pid} to {DXG}", answer.unknown_because or "")
        return
    if not subject.asked and not any("libdxcore" in path or "libcuda" in path for path in subject.mapped_files):
        return
    target = target_of(subject, gate)
    fix = Fix(f"Give the container or sandbox {DXG}, and {LIBRARIES} with it")
    if target.unit is not None and gate.gate != "path":
        command = f"sudo systemctl set-property {quote(target.unit)} DeviceAllow='{DXG} rw'"
        fix = Fix("Let the unit use it (not tried here)", command)
    yield WSL_DXG.finding(
        f"{subject.comm} (pid {subject.pid}) cannot open {DXG}, through which every GPU of WSL is used: {gate.says}.",
        title="The process cannot open WSL's GPU device",
        evidence=[_kernel(subject.host), *evidence_of(subject, gate, (DXG,))],
        fix=[fix],
        target=target,
    )
