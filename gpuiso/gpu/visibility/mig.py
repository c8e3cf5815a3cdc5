# SPDX-License-Identifier: Apache-2.0
"""MIG devices as CUDA counts and names them.

Source: NVIDIA's MIG User Guide, "Device Names" and "CUDA visible devices". Two spellings exist:
``MIG-<UUID>`` since R470 (470.42.01), and ``MIG-<GPU-UUID>/<GPU instance>/<compute instance>`` before it.
Drivers R450 to R525 give a process one MIG device, and no whole GPU beside it; R570 and later give it one
compute instance of every GPU instance, at most 64, and whole GPUs too. The guide says nothing about the drivers
between; they count as the older ones here. None of this was measured: the oracle rows come from GPUs without MIG.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuiso.gpu.model import Gpu, MigDevice
from gpuiso.gpu.visibility.model import Reason
from gpuiso.gpu.visibility.nodes import mig_is_denied
from gpuiso.gpu.visibility.tokens import hex_run, quoted

__all__ = [
    "MAX_MIG_DEVICES",
    "Device",
    "Refusal",
    "enumerate_devices",
    "find_mig",
    "many_mig",
    "mig_name",
    "uuid_spelling",
]

MAX_MIG_DEVICES = 64
"""MIG devices one process can enumerate (MIG User Guide, R570 and later)."""

_OLD = re.compile(r"MIG-GPU-([0-9a-fA-F-]+)/([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Device:
    """What CUDA enumerates: a whole GPU, or one MIG device of a GPU."""

    gpu: Gpu
    mig: MigDevice | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a token names no device."""

    reason: Reason
    why: str


def driver_branch(version: str | None) -> int | None:
    """The branch of a driver version: 580 for ``580.159.04``, None if it is not known."""
    head = (version or "").split(".")[0]
    return int(head) if head.isascii() and head.isdecimal() and len(head) <= 9 else None


def many_mig(driver_version: str | None) -> bool:
    """Whether this driver gives a process several MIG devices. An unknown driver counts as a new one."""
    branch = driver_branch(driver_version)
    return branch is None or branch >= 570


def uuid_spelling(driver_version: str | None) -> bool:
    """Whether this driver names MIG devices ``MIG-<UUID>``. An unknown driver counts as a new one."""
    branch = driver_branch(driver_version)
    return branch is None or branch >= 470


def mig_name(mig: MigDevice) -> str:
    """The UUID, or ``GI/CI`` where the inventory has none."""
    return mig.uuid or f"{mig.gpu_instance}/{mig.compute_instance}"


def enumerate_devices(gpus: Sequence[Gpu], denied: Collection[str], driver_version: str | None) -> list[Device]:
    """What CUDA enumerates on these GPUs when no variable selects any, in PCI order.

    ``gpus`` are those whose node the process may open. A GPU in MIG mode without instances shows nothing.
    """
    devices: list[Device] = []
    for gpu in gpus:
        if not gpu.mig_enabled:
            devices.append(Device(gpu))
            continue
        instances: set[int] = set()
        for mig in sorted(gpu.mig_devices, key=lambda m: (m.gpu_instance, m.compute_instance)):
            if mig.gpu_instance not in instances and not mig_is_denied(mig, denied):
                instances.add(mig.gpu_instance)
                devices.append(Device(gpu, mig))
    partitions = [device for device in devices if device.mig is not None]
    if not partitions:
        return devices
    if not many_mig(driver_version):
        return partitions[:1]
    beyond = partitions[MAX_MIG_DEVICES:]
    return [device for device in devices if device not in beyond] if beyond else devices


def find_mig(text: str, gpus: Sequence[Gpu], denied: Collection[str], driver_version: str | None) -> Device | Refusal:
    """The MIG device a ``MIG-...`` token names among ``gpus``, or why it names none."""
    migs = [(gpu, mig) for gpu in gpus if gpu.mig_enabled for mig in gpu.mig_devices]
    if not migs:
        return Refusal(Reason.NO_MIG, "no GPU this process can open has a MIG device")
    old = _OLD.match(text)
    if old is not None:
        prefix, place = f"gpu-{old[1]}".lower(), (int(old[2]), int(old[3]))
        found = [
            (gpu, mig)
            for gpu, mig in migs
            if (gpu.uuid or "").lower().startswith(prefix) and (mig.gpu_instance, mig.compute_instance) == place
        ]
    elif not uuid_spelling(driver_version):
        why = "drivers before R470 name MIG devices MIG-<GPU-UUID>/<GPU instance>/<compute instance>"
        return Refusal(Reason.UNKNOWN_MIG, why)
    else:
        run = hex_run(text.removeprefix("MIG-"))[:36]
        prefix = f"mig-{run}".lower()
        found = [(gpu, mig) for gpu, mig in migs if run and (mig.uuid or "").lower().startswith(prefix)]
    if not found:
        return Refusal(Reason.UNKNOWN_MIG, f"no MIG device this process can open is called {quoted(text)}")
    if len(found) > 1:
        why = f"the names of {len(found)} MIG devices begin with {quoted(text)}"
        return Refusal(Reason.AMBIGUOUS_UUID, why)
    gpu, mig = found[0]
    if mig_is_denied(mig, denied):
        return Refusal(Reason.DENIED, "a capability node of that MIG device may not be opened")
    return Device(gpu, mig)
