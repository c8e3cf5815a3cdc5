# SPDX-License-Identifier: Apache-2.0
"""The device nodes that a GPU or a MIG device stands for in a rule.

Allowing gives what compute work needs: the GPU's own node, the control nodes that it shares with others, and the
capability nodes of its MIG devices. Denying takes what belongs to it alone, its DRM nodes too; control nodes go only
with the last GPU (``gpu all``), because without them the other GPUs would be lost as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuiso.gpu.model import DeviceNode, Gpu, Inventory, MigDevice, Role

__all__ = ["Missing", "gpu_nodes", "mig_nodes"]

_CONTROL: frozenset[Role] = frozenset({"control", "uvm", "uvm-tools"})


class Missing(Exception):
    """What was named is not there, or names more than one; ``hint`` says what there is."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def gpu_nodes(inventory: Inventory, name: str, *, allow: bool) -> list[DeviceNode]:
    """:raises Missing: there is no such GPU."""
    usable = [gpu for gpu in inventory.gpus if gpu.index is not None]
    if name == "all":
        if not usable:
            raise Missing("there is no GPU here")
        gpus: Sequence[Gpu] = usable
    else:
        gpus = (_find(usable, name),)
    nodes: list[DeviceNode] = []
    for gpu in gpus:
        nodes += _own_nodes(gpu, allow=allow)
        if allow or name == "all":
            nodes += _control_nodes(inventory, gpu)
    if not allow and name == "all":
        nodes += inventory.shared_nodes
    return _once(nodes)


def mig_nodes(inventory: Inventory, name: str, *, allow: bool) -> list[DeviceNode]:
    """:raises Missing: there is no such MIG device."""
    gpu, mig = _find_mig(inventory, name)
    if not mig.nodes:
        raise Missing(f"the capability nodes of mig {name} are not known", "is nvidia-caps in /proc/devices?")
    if not allow:
        # Compute instances of one GPU instance share its node.
        others = {node.path for other in gpu.mig_devices if other is not mig for node in other.nodes}
        return [node for node in mig.nodes if node.path not in others]
    whole = [node for node in gpu.nodes if node is gpu.node]
    return _once([*whole, *_control_nodes(inventory, gpu), *mig.nodes])


def _own_nodes(gpu: Gpu, *, allow: bool) -> list[DeviceNode]:
    if gpu.node is None:
        raise Missing(
            f"the node of the GPU at {gpu.pci_address} is not known", "what /proc/driver/nvidia says is missing"
        )
    nodes = [node for node in gpu.nodes if node is gpu.node or not allow]
    return [*nodes, *(node for mig in gpu.mig_devices for node in mig.nodes)]


def _control_nodes(inventory: Inventory, gpu: Gpu) -> list[DeviceNode]:
    """/dev/kfd belongs to AMD's GPUs, the others of these to NVIDIA's; Intel's have none."""
    shared = [node for node in inventory.shared_nodes if node.role in _CONTROL]
    if gpu.vendor == "amd":
        return [node for node in shared if node.path == "/dev/kfd"]
    return [node for node in shared if node.path != "/dev/kfd"] if gpu.vendor == "nvidia" else []


def _find(gpus: Sequence[Gpu], name: str) -> Gpu:
    vendor, colon, index = name.rpartition(":")
    if name.isdigit():
        found = [gpu for gpu in gpus if gpu.index == int(name)]
    elif name.startswith("GPU-"):
        found = _by_uuid(gpus, name)
    elif colon and vendor in ("nvidia", "amd", "intel"):
        found = [gpu for gpu in gpus if gpu.vendor == vendor and gpu.index == int(index)]
    else:
        found = [gpu for gpu in gpus if gpu.pci_address.lower()[-12:] == name.lower()[-12:]]
    if not found:
        raise Missing(f"there is no GPU {name} here", _what_there_is(gpus))
    if len(found) > 1:
        raise Missing(f"gpu {name} names {len(found)} GPUs", f"write one of {', '.join(map(_exact_name, found))}")
    return found[0]


def _by_uuid(gpus: Sequence[Gpu], name: str) -> list[Gpu]:
    found = [gpu for gpu in gpus if (gpu.uuid or "").lower().startswith(name.lower())]
    return [gpu for gpu in found if (gpu.uuid or "").lower() == name.lower()] or found


def _exact_name(gpu: Gpu) -> str:
    return gpu.uuid or f"{gpu.vendor}:{gpu.index}"


def _what_there_is(gpus: Sequence[Gpu]) -> str:
    if not gpus:
        return "no GPU was found at all"
    return "there is " + ", ".join(f"{gpu.vendor}:{gpu.index} ({gpu.uuid or gpu.pci_address})" for gpu in gpus)


def _find_mig(inventory: Inventory, name: str) -> tuple[Gpu, MigDevice]:
    pairs = [(gpu, mig) for gpu in inventory.gpus if gpu.index is not None for mig in gpu.mig_devices]
    if name.startswith("MIG-GPU-"):
        uuid, gpu_instance, compute_instance = name.removeprefix("MIG-").split("/")
        place = (int(gpu_instance), int(compute_instance))
        found = [
            (gpu, mig)
            for gpu, mig in pairs
            if gpu in _by_uuid([gpu], uuid) and (mig.gpu_instance, mig.compute_instance) == place
        ]
    else:
        found = [(gpu, mig) for gpu, mig in pairs if (mig.uuid or "").lower().startswith(name.lower())]
        found = [pair for pair in found if (pair[1].uuid or "").lower() == name.lower()] or found
    if len(found) == 1:
        return found[0]
    known = ", ".join(mig.uuid or f"{mig.gpu_instance}/{mig.compute_instance}" for _, mig in (found or pairs))
    if found:
        raise Missing(f"mig {name} names {len(found)} MIG devices", f"write one of {known}")
    raise Missing(
        f"there is no MIG device {name} here", f"there is {known}" if known else "no GPU here has MIG devices"
    )


def _once(nodes: Iterable[DeviceNode]) -> list[DeviceNode]:
    return list({node.path: node for node in nodes}.values())
