# SPDX-License-Identifier: Apache-2.0
"""What checks look at: a machine, or one process on it, with the facts derived from them made once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gpuiso.doctor.finding import Evidence, Target
from gpuiso.doctor.gates import Explanation, explain
from gpuiso.doctor.kernel_log import DriverLog, parse_log
from gpuiso.errors import BadInput, NotFound, Unknown
from gpuiso.gpu.holders import find_holders
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.majors import character_majors
from gpuiso.gpu.model import DeviceNode, Gpu, Holder, Inventory
from gpuiso.gpu.visibility import cuda_visible
from gpuiso.gpu.visibility.model import Visibility
from gpuiso.grants.accounts import Accounts
from gpuiso.grants.document import DIRECTORY, Grant, load_grants
from gpuiso.grants.units import Unit, units_of
from gpuiso.grants.uses import Uses
from gpuiso.host import process
from gpuiso.host.cgroup_members import CgroupMembers, cgroup_members, places
from gpuiso.host.containers import Container, Containers, find_containers, unit_in_path
from gpuiso.host.process import Status
from gpuiso.host.protocol import Host, Node
from gpuiso.host.snapshot import Snapshot

__all__ = ["Machine", "Subject"]


class Machine:
    """A host and what follows from its facts. Every property may raise :class:`gpuiso.errors.Unknown`."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def host_json(self) -> dict[str, Any]:
        """What --json says of the host; null is what a record does not tell."""
        told: dict[str, Any] = {"name": self.host.name}
        for name in ("kernel", "cgroup_mode", "systemd"):
            try:
                told[name] = getattr(self.host, name)
            except Unknown:
                told[name] = None
        return told

    @cached_property
    def inventory(self) -> Inventory:
        return build_inventory(self.host)

    @cached_property
    def nvidia(self) -> tuple[Gpu, ...]:
        """The GPUs that NVIDIA's driver holds, by index."""
        return self.inventory.of("nvidia")

    @cached_property
    def nvidia_nodes(self) -> tuple[DeviceNode, ...]:
        """Every node that NVIDIA's driver ought to have: the GPUs' own, then the shared ones."""
        nodes = [node for gpu in self.nvidia for node in gpu.nodes if node.role == "gpu"]
        nodes += [node for node in self.inventory.shared_nodes if node.path != "/dev/kfd"]
        for node in nodes:
            if node.required and not node.known:
                raise Unknown(node.path, "not known whether it exists")
        return tuple(nodes)

    @cached_property
    def majors(self) -> Mapping[str, int]:
        """Majors of character devices by registered name."""
        return character_majors(self.host)

    @cached_property
    def modules(self) -> frozenset[str]:
        """Names of the loaded kernel modules."""
        text = self.host.text("/proc/modules")
        if text is None:
            raise Unknown("/proc/modules", "not there: a kernel without loadable modules, or a hidden /proc")
        return frozenset(line.split(" ", 1)[0] for line in text.splitlines())

    @cached_property
    def kernel_log(self) -> tuple[str, ...]:
        """The kernel's messages, oldest first."""
        return tuple(self.host.kernel_log().splitlines())

    @cached_property
    def audit_log(self) -> tuple[str, ...]:
        """What the audit system put into the kernel's log, as it does where no auditd runs, oldest first."""
        return tuple(line for line in self.kernel_log if "audit" in line or "avc:" in line)

    @cached_property
    def driver_log(self) -> DriverLog:
        """What NVIDIA's driver said in the kernel's log since this boot."""
        return parse_log(self.kernel_log)

    @cached_property
    def holders(self) -> tuple[Holder, ...]:
        """Who has GPU nodes open, as far as this host lets us look."""
        return find_holders(self.host)[0]

    @cached_property
    def held(self) -> Mapping[int, Mapping[str, int]]:
        """The GPU nodes each process has open, with the number of descriptors."""
        found: dict[int, dict[str, int]] = {}
        for holder in self.holders:
            found.setdefault(holder.pid, {})[holder.node] = holder.descriptors
        return found

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """What can be granted: whole GPUs and MIG devices."""
        return units_of(self.inventory)

    @cached_property
    def uses(self) -> Uses:
        """Which of these a process uses."""
        return Uses(self.host, self.units)

    @cached_property
    def accounts(self) -> Accounts:
        """Names of users and groups."""
        return Accounts(self.host)

    @cached_property
    def _read_grants(self) -> tuple[Grant, ...] | BadInput | None:
        try:
            self.host.listdir(DIRECTORY)
        except Unknown:
            if self.host.live:
                raise
            return None  # a record from before there were grants says nothing of them
        try:
            return load_grants(self.host)
        except BadInput as error:
            return error

    @property
    def grants(self) -> tuple[Grant, ...] | None:
        """Who may have which GPUs; None if nothing says so, or not in a way that can be understood."""
        found = self._read_grants
        return None if isinstance(found, BadInput) else found

    @property
    def grants_fault(self) -> BadInput | None:
        """What is wrong with the files that say so."""
        found = self._read_grants
        return found if isinstance(found, BadInput) else None

    @cached_property
    def members(self) -> CgroupMembers:
        """The processes of each cgroup."""
        return cgroup_members(self.host)

    @cached_property
    def containers(self) -> Containers:
        """Every container of every engine, and what could not be read of them."""
        return find_containers(self.host, self.members)


class Subject:
    """A process under examination. ``asked`` tells whether the user named it (``--pid``) or the doctor came upon it."""

    def __init__(self, machine: Machine, pid: int, *, asked: bool, probe: bool = False) -> None:
        self.machine = machine
        self.host = Snapshot(machine.host, pid)
        self.pid = pid
        self.asked = asked
        self.probe = probe
        self._explained: dict[tuple[str, str], Explanation] = {}

    @cached_property
    def target(self) -> Target:
        """The process, and the container or else the unit it belongs to, as far as that can be known."""
        try:
            container = self.container
            unit = self.unit if container is None else None
        except (NotFound, Unknown):
            return Target(pid=self.pid)
        return Target(pid=self.pid, container=None if container is None else container.id, unit=unit)

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The cgroups the process is in, the v2 one first; root cgroups say nothing and are left out."""
        return places(process.cgroups(self.host, self.pid))

    @cached_property
    def container(self) -> Container | None:
        """The container the process is in, None if it is in none."""
        return self.machine.containers.at(self.places)

    @cached_property
    def unit(self) -> str | None:
        """The unit of the system manager that the process belongs to, a container's scope included."""
        return next((unit for unit in map(unit_in_path, self.places) if unit is not None), None)

    @cached_property
    def env(self) -> Mapping[str, str]:
        """The environment the process was started with."""
        return process.environ(self.host, self.pid)

    @cached_property
    def status(self) -> Status:
        return process.status(self.host, self.pid)

    @cached_property
    def comm(self) -> str:
        return process.command_name(self.host, self.pid)

    def environ_evidence(self, name: str) -> Evidence:
        """Evidence that quotes one variable of the process."""
        value = self.env.get(name)
        return Evidence(f"/proc/{self.pid}/environ", f"{name} is not set" if value is None else f"{name}={value}")

    def stat(self, path: str) -> Node | None:
        """A path as the process sees it."""
        return self.host.stat(f"/proc/{self.pid}/root{path}")

    def access(self, path: str, access: str = "rw") -> Explanation:
        """Whether the process may open a node (a path in its own view), and which gate decides."""
        key = (path, access)
        if key not in self._explained:
            explained = explain(self.host, self.pid, path, access, probe=self.probe, rules=False)
            if explained.denied_by is not None and explained.denied_by.gate == "cgroup-v2":
                explained = explain(self.host, self.pid, path, access, probe=self.probe)
            self._explained[key] = explained
        return self._explained[key]

    @cached_property
    def _answers(self) -> Mapping[str, Explanation]:
        return {node.path: self.access(node.path) for node in self.machine.nvidia_nodes if node.required}

    @property
    def denied(self) -> Mapping[str, Explanation]:
        """The nodes of NVIDIA's driver that the process certainly cannot open: absent, denied, or without a driver."""
        return {path: answer for path, answer in self._answers.items() if answer.verdict == "deny"}

    @property
    def doubtful(self) -> Mapping[str, Explanation]:
        """The nodes of which it cannot be known whether the process may open them."""
        return {path: answer for path, answer in self._answers.items() if answer.verdict == "unknown"}

    @cached_property
    def visibility(self) -> Visibility:
        """What the process sees through CUDA, if it may open what is ``doubtful``."""
        return cuda_visible(
            self.machine.nvidia,
            self.env,
            denied=frozenset(self.denied),
            driver_version=self.machine.inventory.driver_version,
        )

    @cached_property
    def mapped_files(self) -> frozenset[str]:
        """The files the process has mapped, its libraries among them. :raises Unknown: not permitted or recorded."""
        return process.mapped_files(self.host, self.pid)

    @cached_property
    def holds(self) -> Mapping[str, int]:
        """GPU nodes the process has open, with the number of descriptors."""
        return self.machine.held.get(self.pid, {})
