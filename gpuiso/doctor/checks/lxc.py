# SPDX-License-Identifier: Apache-2.0
"""LXC and Proxmox containers whose configuration allows devices by a major that has changed since."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import Unknown
from gpuiso.gpu.majors import nvidia_major

__all__: list[str] = []

MAJOR_STALE = Rule(
    "GPU-LXC-MAJOR-STALE",
    "error",
    "An LXC container allows nvidia-uvm by a number that has changed",
    "lxc.cgroup2.devices.allow names a dynamic major, and nvidia-uvm has another one since a new kernel or driver",
    (
        "https://github.com/jammsen/proxmox-setup-scripts/issues/7",
        "https://github.com/Telmate/terraform-provider-proxmox/issues/1138",
    ),
)

_ALLOW = re.compile(
    r"^\s*lxc\.cgroup2?\.devices\.allow\s*[:=]\s*(a|c\s+(\d{1,9}|\*):(\d{1,9}|\*)\s+\w+)\s*$", re.MULTILINE
)
_DYNAMIC = 234  # the lowest major that the kernel gives by itself (drivers/char/mem.c, char_dev.c)


def _configurations(machine: Machine) -> Iterator[tuple[str, str]]:
    """The name and the configuration file of every LXC container."""
    host = machine.host
    missing: Unknown | None = None
    places = (("/etc/pve/lxc", "{}"), ("/var/lib/lxc", "{}/config"))
    for directory, pattern in places:
        try:
            for name in host.listdir(directory) or ():
                if directory == "/var/lib/lxc" or name.endswith(".conf"):
                    yield name.removesuffix(".conf"), f"{directory}/{pattern.format(name)}"
        except Unknown as error:
            missing = missing or error
    if missing is not None:
        raise missing


@machine_check(MAJOR_STALE)
def stale_majors(machine: Machine) -> Iterator[Finding]:
    """Numbers in the configurations against /proc/devices."""
    if not machine.nvidia or nvidia_major(machine.majors) is None or "nvidia-uvm" not in machine.majors:
        return
    uvm = machine.majors["nvidia-uvm"]
    for name, path in _configurations(machine):
        text = machine.host.text(path) or ""
        active = text.partition("\n[")[0]  # Proxmox keeps snapshots of the configuration below it
        matches = list(_ALLOW.finditer(active))
        majors = [match[2] for match in matches if match[2] is not None]
        if any(match[1] == "a" for match in matches) or {"*", str(uvm)} & set(majors):
            continue
        stale = [each for each in majors if int(each) >= _DYNAMIC and int(each) not in set(machine.majors.values())]
        if str(nvidia_major(machine.majors)) not in majors or not stale:
            continue
        yield _finding(name, path, uvm, sorted(set(stale)))


def _finding(name: str, path: str, uvm: int, stale: list[str]) -> Finding:
    edit = f"sed -i 's/\\(devices\\.allow[:= ]*c \\){stale[0]}:/\\1{uvm}:/' {quote(path)}"
    again = f"pct reboot {name}" if path.startswith("/etc/pve/") else f"lxc-stop -r -n {quote(name)}"
    return MAJOR_STALE.finding(
        f"The LXC container {name} allows the device majors {', '.join(stale)}, which no driver has, and not {uvm},"
        " which nvidia-uvm has now: the number changes with the kernel and the driver. nvidia-smi works in it,"
        " cuInit fails with 999.",
        evidence=[
            Evidence(path, f"allows c {', '.join(stale)}:*"),
            Evidence("/proc/devices", f"{uvm} nvidia-uvm; {', '.join(stale)} is not there"),
        ],
        fix=[
            Fix(
                "Write the number of today, and start the container again", f"sudo sh -c {quote(f'{edit} && {again}')}"
            ),
            Fix(
                "For good, give it the device by its path, which needs no number: on Proxmox 8.2 and later"
                " dev0: /dev/nvidia-uvm (not tried here)"
            ),
        ],
        target=Target(container=name),
    )
