# SPDX-License-Identifier: Apache-2.0
"""When nothing found is not the same as nothing wrong."""

from __future__ import annotations

from collections.abc import Iterable

from gpuiso.doctor.finding import NotExamined
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import all_rules

__all__ = ["unsure_rules"]

#: What tells of the GPUs and their nodes themselves.
_CORE = ("/dev/nvidia", "/dev/dri", "/dev/kfd", "/proc/devices", "/proc/driver/nvidia", "/sys/bus/pci")
_OF_NODES = frozenset({"GPU-LAZY-NODES", "GPU-UVM-MISSING", "GPU-UVM-MAJOR-MISMATCH", "GPU-DEV-NUMBERS"})
#: A record lacks what nobody wrote into it. That says nothing of the host, and records written by hand lack much.
_NOT_RECORDED = "not recorded"


def unsure_rules(machine: Machine, missing: Iterable[NotExamined], *, asked: bool) -> tuple[str, ...]:
    """The rules of errors that could not be examined, because what they need is hidden or closed, and that matter.

    Those matter that need the GPUs and their nodes, those about a process that was ``asked`` about, and those about
    nodes where a node that CUDA needs is not there.
    """
    errors = {rule.id for rule in all_rules() if rule.severity == "error"}
    absent = _lacks_a_node(machine)
    found: set[str] = set()
    for entry in missing:
        rules = errors.intersection(entry.rules)
        if _NOT_RECORDED in entry.why:
            continue
        if entry.what.startswith(_CORE) or (asked and entry.pid is not None) or (absent and rules & _OF_NODES):
            found |= rules
    return tuple(sorted(found))


def _lacks_a_node(machine: Machine) -> bool:
    nodes = [node for gpu in machine.inventory.gpus if gpu.index is not None for node in gpu.nodes]
    return any(
        node.required and node.known and node.actual is None for node in (*nodes, *machine.inventory.shared_nodes)
    )
