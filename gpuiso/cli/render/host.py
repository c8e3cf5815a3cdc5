# SPDX-License-Identifier: Apache-2.0
"""A picture of a host: its GPUs, their nodes, the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuiso.cli.render.plain import one_line
from gpuiso.doctor.checks.node_files import actual_numbers
from gpuiso.doctor.machine import Machine
from gpuiso.errors import Unknown
from gpuiso.gpu.model import DeviceNode, Gpu

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

__all__ = ["host_line", "host_tree"]

_CGROUPS = {"unified": "cgroup v2", "hybrid": "cgroup v1 + v2", "legacy": "cgroup v1"}


def host_tree(machine: Machine) -> Tree:
    """The tree. What is wrong with a node stands beside it."""
    from rich.text import Text
    from rich.tree import Tree

    inventory = machine.inventory
    tree = Tree(Text(host_line(machine), style="bold"))
    for gpu in inventory.gpus:
        branch = tree.add(_gpu_line(gpu))
        for node in gpu.nodes:
            branch.add(_node_line(node))
        for mig in gpu.mig_devices:
            name = f"MIG {mig.gpu_instance}/{mig.compute_instance} {mig.profile or ''} {mig.uuid or ''}"
            leaf = branch.add(Text(" ".join(name.split())))
            for node in mig.nodes:
                leaf.add(_node_line(node))
    if inventory.shared_nodes:
        branch = tree.add(Text("shared by all GPUs"))
        for node in inventory.shared_nodes:
            branch.add(_node_line(node))
    held = _holder_lines(machine)
    if held:
        branch = tree.add(Text("held by"))
        for line in held:
            branch.add(line)
    return tree


def host_line(machine: Machine) -> str:
    """The host in one line: kernel, cgroups, driver."""
    host, inventory = machine.host, machine.inventory
    parts = [
        one_line(host.name),
        _if_known("kernel", lambda: f"kernel {one_line(host.kernel)}"),
        _if_known("cgroups", lambda: _CGROUPS[host.cgroup_mode]),
        _if_known("systemd", lambda: "systemd" if host.systemd else "no systemd"),
    ]
    if inventory.driver_version is not None:
        flavour = {True: "open", False: "proprietary", None: ""}[inventory.open_modules]
        parts.append(" ".join(f"NVIDIA driver {inventory.driver_version} {flavour}".split()))
    if inventory.cuda_version is not None:
        parts.append(f"CUDA {inventory.cuda_version}")
    return " · ".join(parts)


def _if_known(what: str, ask: Callable[[], str]) -> str:
    """The answer; a record need not have it."""
    try:
        return ask()
    except Unknown:
        return f"{what} unknown"


def _gpu_line(gpu: Gpu) -> Text:
    from rich.text import Text

    number = "GPU -" if gpu.index is None else f"GPU {gpu.index}"
    line = Text(f"{number}  {gpu.name or gpu.vendor}  {gpu.pci_address}")
    if gpu.uuid is not None:
        line.append(f"  {gpu.uuid}", style="dim")
    if gpu.memory_total is not None and gpu.memory_used is not None:
        line.append(f"  {gpu.memory_used >> 20} of {gpu.memory_total >> 20} MiB used")
    if gpu.mig_enabled:
        line.append("  MIG")
    if gpu.index is None:
        line.append(f"  driven by {gpu.driver}" if gpu.driver else "  no driver", style="yellow")
    return line


def _node_line(node: DeviceNode) -> Text:
    from rich.text import Text

    expected = "?" if node.major is None else f"{node.major}:{node.minor}"
    if node.actual is None:
        style = "red" if node.required else "dim"
        return Text(f"{node.path}  {expected}  missing", style=style)
    owner = f"{node.actual.mode:04o} {node.actual.uid}:{node.actual.gid}"
    if node.right:
        return Text.assemble(f"{node.path}  {expected}  ", (owner, "dim"))
    return Text(f"{node.path}  is {actual_numbers(node.actual)}, should be c {expected}", style="red")


def _holder_lines(machine: Machine) -> list[Text]:
    from rich.text import Text

    try:
        holders = machine.holders
    except Unknown:
        return []  # a record without processes
    nodes: dict[tuple[int, str], list[str]] = {}
    for holder in holders:
        nodes.setdefault((holder.pid, holder.comm), []).append(holder.node.removeprefix("/dev/"))
    return [Text(f"pid {pid}  {one_line(comm)}  {' '.join(names)}") for (pid, comm), names in nodes.items()]
