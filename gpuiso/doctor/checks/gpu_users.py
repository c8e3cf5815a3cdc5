# SPDX-License-Identifier: Apache-2.0
"""Who works with which vendor's GPUs, and which nodes that takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.doctor.gates import Gate
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.gpu.model import DeviceNode, Vendor
from gpuiso.gpu.visibility.cuda import VARIABLE
from gpuiso.gpu.visibility.nodes import NVIDIA_UVM

__all__ = ["Family", "families", "uses"]

#: What a program maps once it works with GPUs of a vendor.
_LIBRARIES: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("libcuda.so",),
    "amd": ("libhsa-runtime64.so", "libamdhip64.so"),
    "intel": ("libze_intel_gpu.so", "libze_loader.so"),
}
_SELECTING: dict[Vendor, tuple[str, ...]] = {
    "nvidia": (VARIABLE,),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    "intel": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}
_NO_GPU = frozenset({"", "none", "void", "nodevfiles"})


@dataclass(frozen=True, slots=True)
class Family:
    """A vendor's GPUs on this host: their own nodes, and those that all of them need.

    ``main`` tells whether these are the GPUs meant when nobody says which: not the graphics that came with the CPU.
    """

    vendor: Vendor
    gpus: tuple[DeviceNode, ...]
    control: tuple[DeviceNode, ...]
    main: bool

    def hidden(self, subject: Subject) -> bool:
        """Whether a variable hides every GPU of the vendor, as schedulers do for work without GPUs."""
        values = [subject.env.get(name) for name in _SELECTING[self.vendor]]
        return any(value is not None and _hides(value) for value in values)

    def mapped(self, subject: Subject) -> bool:
        """Whether the process has loaded the vendor's library. :raises Unknown: its maps cannot be read."""
        names = (path.rsplit("/", 1)[-1] for path in subject.mapped_files)
        return any(name.startswith(_LIBRARIES[self.vendor]) for name in names)

    def selected(self, subject: Subject) -> bool:
        return any(name in subject.env for name in _SELECTING[self.vendor])

    def held(self, subject: Subject) -> bool:
        own = {node.path for node in (*self.gpus, *self.control)}
        return any(path in own for path in subject.holds)

    def spared(self, subject: Subject, path: str, gate: Gate) -> bool:
        """Whether a container goes without a node because it was started without the compute capability."""
        capabilities = subject.env.get("NVIDIA_DRIVER_CAPABILITIES")
        if path != NVIDIA_UVM or gate.gate != "path" or not capabilities:
            return False
        return not {"all", "compute"} & {word.strip() for word in capabilities.split(",")}


def _hides(value: str) -> bool:
    word = value.strip().lower()
    return word in _NO_GPU or word.startswith("-")


def families(machine: Machine) -> Iterator[Family]:
    """The vendors whose drivers hold GPUs of this host."""
    vendors: tuple[Vendor, ...] = ("nvidia", "amd", "intel")
    present = [vendor for vendor in vendors if machine.inventory.of(vendor)]
    shared = [node for node in machine.inventory.shared_nodes if node.required]
    for vendor in present:
        gpus = tuple(gpu.node for gpu in machine.inventory.of(vendor) if gpu.node is not None)
        control = tuple(node for node in shared if node.path.startswith(_CONTROL[vendor]))
        yield Family(vendor, gpus, control, main=vendor == present[0])


_CONTROL: dict[Vendor, tuple[str, ...]] = {"nvidia": ("/dev/nvidia",), "amd": ("/dev/kfd",), "intel": ()}


def uses(subject: Subject, family: Family, *, in_view: bool) -> bool:
    """Whether lacking this vendor's GPUs is a loss to the process.

    Who names a process means the main GPUs of its host, or those of the vendor it shows signs of. A process that the
    doctor came upon must have loaded the vendor's library, and have selected GPUs: many a service carries a variable
    that it never reads. ``in_view`` tells whether GPU nodes were put into its /dev.
    """
    if subject.asked and (family.main or family.selected(subject)):
        return True
    wants = family.selected(subject) or family.held(subject)
    if family.vendor == "nvidia" and in_view:
        # Images for CUDA bring this variable along; it says something only where nodes came with it.
        wants = wants or not _hides(subject.env.get("NVIDIA_VISIBLE_DEVICES", ""))
    return (wants or subject.asked) and family.mapped(subject)
