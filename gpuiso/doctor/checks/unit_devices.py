# SPDX-License-Identifier: Apache-2.0
"""Services whose own settings keep them from the GPUs: PrivateDevices=, and a DeviceAllow= list with gaps."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import join, quote

from gpuiso.doctor.checks.denial import Cause, Denial
from gpuiso.doctor.finding import Evidence, Fix, Rule
from gpuiso.doctor.unit_settings import Entry, UnitSettings, covers, group_is_known, unit_settings

__all__ = ["DEVICEALLOW_GAP", "PRIVATEDEVICES", "device_allow_gap", "private_devices"]

EXEC = "https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html"
CONTROL = "https://www.freedesktop.org/software/systemd/man/latest/systemd.resource-control.html"

PRIVATEDEVICES = Rule(
    "GPU-UNIT-PRIVATEDEVICES",
    "error",
    "The service has PrivateDevices=yes and so no GPU",
    "a unit with PrivateDevices=yes gets a /dev of its own without GPU nodes, and a filter that denies them",
    (EXEC, "https://github.com/NixOS/nixpkgs/pull/266167"),
)
DEVICEALLOW_GAP = Rule(
    "GPU-UNIT-DEVICEALLOW-GAP",
    "error",
    "The DeviceAllow= list of the unit lacks GPU nodes",
    "a unit with a DeviceAllow= list does not name all nodes that CUDA needs, or names a char- group that was unknown"
    " when the unit started and was dropped",
    (CONTROL, "https://github.com/systemd/systemd/pull/12456", "https://github.com/NixOS/nixpkgs/issues/363357"),
)


def _settings(denial: Denial) -> UnitSettings | None:
    unit = denial.unit
    if unit is None or denial.container is not None:
        return None
    return unit_settings(denial.subject.host, unit)


def private_devices(denial: Denial) -> Cause | None:
    """The node is not in the service's /dev, or its filter denies it, because of PrivateDevices=."""
    if denial.gate.gate != "path" and not denial.by_filter:
        return None
    settings = _settings(denial)
    if settings is None or not settings.private_devices:
        return None
    unit = settings.name
    nodes = _needed(denial)
    lines = ["[Service]", "PrivateDevices=no", "DevicePolicy=closed", *(f"DeviceAllow={path} rw" for path in nodes)]
    place = f"/etc/systemd/system/{unit}.d"
    text = "\\n".join(lines) + "\\n"
    command = (
        f"sudo mkdir -p {quote(place)} && printf {quote(text)} | sudo tee {quote(f'{place}/gpu.conf')} >/dev/null"
        f" && sudo systemctl daemon-reload && sudo systemctl restart {quote(unit)}"
    )
    return Cause(
        PRIVATEDEVICES,
        f"{unit} has PrivateDevices=yes: systemd gives it a /dev without {denial.nodes}, and a device filter that"
        f" denies them. So {denial.who} cannot use GPUs that the host has.",
        (Evidence(settings.source, settings.words), *denial.evidence),
        (Fix("Turn it off, keep the other devices closed, and name the GPU nodes that the service needs", command),),
    )


def _needed(denial: Denial) -> list[str]:
    """The nodes to allow: those denied, and what every CUDA program needs beside a GPU's own."""
    shared = [node.path for node in denial.subject.machine.nvidia_nodes if node.required and node.role != "gpu"]
    gpus = [node.path for node in denial.subject.machine.nvidia_nodes if node.role == "gpu"]
    return [path for path in dict.fromkeys((*gpus, *shared)) if path in denial.paths or path in shared]


def device_allow_gap(denial: Denial) -> Cause | None:
    """systemd's filter denies what the unit's list does not name, or named by a group that it could not resolve."""
    if not denial.by_filter:
        return None
    settings = _settings(denial)
    if settings is None or settings.private_devices or not settings.restricts:
        return None
    if denial.gate.gate == "cgroup-v2" and not any(
        each.value == "deny" and each.owner.name == "systemd" for each in denial.programs()
    ):
        return None
    host = denial.subject.host
    dropped = [entry for entry in settings.allow if not group_is_known(host, entry) and _meant(entry, denial.paths)]
    late = [
        entry
        for entry in settings.allow
        if any(covers(host, entry, path, node) for path, node in denial.numbered()) and entry not in dropped
    ]
    if dropped:
        says = (
            f"{settings.name} allows {_names(dropped)}, but no driver of that name is registered in /proc/devices:"
            f" systemd drops such a group, so that its filter denies {denial.nodes}."
        )
        title = "A device group in DeviceAllow= is unknown to the kernel"
    elif late:
        says = (
            f"{settings.name} allows {_names(late)}, but the driver was not loaded when the unit started: systemd"
            f" resolved that to nothing, and its filter still denies {denial.nodes}."
        )
        title = "A device group in DeviceAllow= was unknown when the unit started"
    else:
        says = (
            f"{settings.name} may only open the devices it lists, and {denial.nodes} is not among them: open fails with"
            f" EPERM in {denial.who}."
        )
        title = None
    return Cause(
        DEVICEALLOW_GAP,
        says,
        (Evidence(settings.source, settings.words), *_registered(denial, dropped or late), *denial.evidence),
        tuple(_fixes(denial, settings, dropped or late)),
        title,
    )


def _names(entries: Sequence[Entry]) -> str:
    return " and ".join(entry.spec for entry in entries)


def _meant(entry: Entry, paths: tuple[str, ...]) -> bool:
    """Whether a group that resolves to nothing was meant for one of the denied nodes."""
    stem = entry.spec.partition("-")[2].rstrip("*").rstrip("-")
    for path in paths:
        name = path.removeprefix("/dev/")
        group = "nvidia-uvm" if name.startswith("nvidia-uvm") else name.rstrip("0123456789")
        if stem and (group == stem or group.startswith(f"{stem}-") or stem == f"{group}-frontend"):
            return True
    return False


def _registered(denial: Denial, entries: Sequence[Entry]) -> tuple[Evidence, ...]:
    if not entries:
        return ()
    names = sorted(name for name in denial.subject.machine.majors if name.startswith("nvidia"))
    return (Evidence("/proc/devices", f"NVIDIA's names are {', '.join(names) or 'none'}"),)


def _fixes(denial: Denial, settings: UnitSettings, groups: Sequence[Entry]) -> list[Fix]:
    unit = quote(settings.name)
    allow = join(f"DeviceAllow={path} rw" for path in denial.paths)
    fixes = [
        Fix(
            "Add the nodes to the unit's list by path; systemd rewrites the filter at once, and keeps it so",
            f"sudo systemctl set-property {unit} {allow}",
        )
    ]
    if any("uvm" in entry.spec for entry in groups):
        fixes.append(
            Fix(
                "Or keep the group, and have the module loaded before the unit starts: "
                "Wants=modprobe@nvidia_uvm.service and After=modprobe@nvidia_uvm.service under [Unit] (not tried here)",
                f"sudo systemctl edit {unit}",
            )
        )
    return fixes
