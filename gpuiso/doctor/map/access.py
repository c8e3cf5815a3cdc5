# SPDX-License-Identifier: Apache-2.0
"""What processes may open, each question asked once for all processes that every gate treats alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuiso.doctor.gates import Explanation, Gate, Verdict, explain
from gpuiso.doctor.gates.cgroup import cgroup_gates, levels
from gpuiso.doctor.map.model import Member
from gpuiso.errors import NotFound, NotSupported, Unknown
from gpuiso.host import process
from gpuiso.host.mounts import covering_mount, mounts
from gpuiso.host.protocol import Host, Node

__all__ = ["Access", "Answer", "Key"]

_T = TypeVar("_T")
_BEFORE_FILTERS = ("path", "nodev", "mode")  # the gates that the kernel asks before the device filters

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a node may be opened. ``absent``: it is not in the process's view at all."""

    verdict: Verdict
    gate: Gate | None
    absent: bool


class Access:
    """The gates' answers. A process that ends while it is asked is unknown to all of them."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._keys: dict[int, Key] = {}
        self._numbers: dict[Hashable, int] = {}
        self._chains: dict[str, Hashable] = {}
        self._places: dict[tuple[int, str], tuple[Explanation, Node | None]] = {}
        self._filters: dict[Hashable, tuple[Gate, ...]] = {}
        self._answers: dict[tuple[Key, str], Answer] = {}
        self._private: dict[Key, bool] = {}

    def key(self, member: Member) -> Key:
        """Equal for processes to which every gate answers alike: the first part for its place, the second for its
        device filters.

        The gates look at the mount namespace and root, the credentials, the labels of security modules; the filters
        are the device programs of all levels and the list of the v1 controller.
        """
        if member.pid not in self._keys:
            self._keys[member.pid] = (self._number(self._place_key(member)), self._number(self._filter_key(member)))
        return self._keys[member.pid]

    def ask(self, member: Member, path: str) -> Answer:
        """Whether ``member`` may open ``path``, a path in its own view, as the drivers' libraries do."""
        key = (self.key(member), path)
        if key not in self._answers:
            try:
                answer = self._ask(member, path)
            except (NotFound, NotSupported) as error:
                gate = Gate("path", path, "unknown", "the process", error.message)
                return Answer("unknown", gate, absent=False)
            self._answers[key] = answer
        return _at(member, self._answers[key])

    def _number(self, facts: Hashable) -> int:
        """A number instead of long tuples, which are slow to compare; the same for equal facts."""
        return self._numbers.setdefault(facts, len(self._numbers))

    def _ask(self, member: Member, path: str) -> Answer:
        place_key, filter_key = self.key(member)
        # Capability nodes are opened for reading (MIG User Guide, "Device Nodes and Capabilities"), and have mode 0444.
        wanted = "r" if path.startswith("/dev/nvidia-caps/") else "rw"
        if place_key == self._numbers.get(member.pid):
            return _answer(explain(self.host, member.pid, path, wanted))
        if (place_key, path) not in self._places:
            explained = explain(self.host, member.pid, path, wanted, filters=False)
            node = self._known(lambda: self.host.stat(f"/proc/{member.pid}/root{path}"))
            self._places[place_key, path] = explained, node
        explained, node = self._places[place_key, path]
        if explained.passive[0].verdict != "allow" or node is None:
            return _answer(explained)
        numbers = (filter_key, node.type, node.major, node.minor, wanted)
        if numbers not in self._filters:
            self._filters[numbers] = cgroup_gates(self.host, member.pid, node, wanted, rules=False)
        before = tuple(gate for gate in explained.passive if gate.gate in _BEFORE_FILTERS)
        gates = (*before, *self._filters[numbers], *explained.passive[len(before) :])
        return _answer(Explanation(path, wanted, gates, explained.probed))

    def private_dev(self, member: Member) -> bool:
        """Whether the process has a /dev of its own, whose nodes somebody chose for it."""
        key = self.key(member)
        if key not in self._private:
            mount = self._known(lambda: covering_mount(mounts(self.host, member.pid), "/dev/null"))
            # A node bound alone from the host's devtmpfs was chosen as well; the whole devtmpfs was not.
            self._private[key] = mount is not None and not (mount.fstype == "devtmpfs" and mount.root == "/")
        return self._private[key]

    def filtered(self, member: Member) -> bool:
        """Whether a level below the root of the process's cgroup tree carries a device program."""
        unified = member.cgroups.get("")
        if unified is None or self._known(lambda: self.host.cgroup_mode) == "legacy":
            return False
        for level in list(levels(unified))[1:]:
            try:
                if self.host.device_programs(level):
                    return True
            except Unknown:
                continue  # nothing is known of this one
        return False

    def _place_key(self, member: Member) -> Hashable:
        host, base = self.host, f"/proc/{member.pid}"
        namespace = self._known(lambda: host.readlink(f"{base}/ns/mnt"))
        status = self._known(lambda: process.status(host, member.pid))
        if namespace is None or status is None or self._probed(member.pid):
            return member.pid
        return (
            namespace,
            self._known(lambda: host.readlink(f"{base}/root")),
            self._known(lambda: host.readlink(f"{base}/ns/user")),
            self._known(lambda: host.text(f"{base}/attr/current")),
            (
                status.uid,
                status.gid,
                status.fsuid,
                status.fsgid,
                status.groups,
                status.cap_eff,
                status.seccomp,
                status.no_new_privs,
            ),
        )

    def _filter_key(self, member: Member) -> Hashable:
        """The device programs of each level of the v2 tree, or the cgroup where one is not known; the v1 cgroup."""
        unified = member.cgroups.get("")
        if unified is None or self._known(lambda: self.host.cgroup_mode) == "legacy":
            return None, member.cgroups.get("devices")
        if unified not in self._chains:
            try:
                programs = [self.host.device_programs(level) or () for level in levels(unified)]
            except Unknown:
                self._chains[unified] = unified
            else:
                chain = tuple(tuple((p.name, p.insns) for p in level) for level in programs)
                unread = any(insns is None for level in chain for _, insns in level)
                self._chains[unified] = unified if unread else chain
        return self._chains[unified], member.cgroups.get("devices")

    def _probed(self, pid: int) -> bool:
        """Whether a record holds what accesses of this process met: that is its own."""
        if self.host.live:
            return False
        try:
            self.host.probe(pid, "/dev/null")
        except Unknown:
            return False
        return True

    @staticmethod
    def _known(question: Callable[[], _T]) -> _T | None:
        try:
            return question()
        except (Unknown, NotFound):
            return None


def _at(member: Member, answer: Answer) -> Answer:
    """An answer that was given to a process with equal filters, in terms of this one's cgroups.

    The programs are equal, but each cgroup has its own copies: their numbers are left out.
    """
    gate = answer.gate
    if gate is None or gate.gate != "cgroup-v2":
        return answer
    own = list(levels(member.cgroups.get("", "/")))
    depth = len([part for part in gate.where.split("/") if part])
    where = own[depth] if depth < len(own) else gate.where
    return replace(answer, gate=replace(gate, where=where, by=gate.by.partition(",")[0]))


def _answer(explained: Explanation) -> Answer:
    if explained.verdict == "allow":
        return Answer("allow", None, absent=False)
    gate = explained.denied_by
    if gate is None:
        gate = next((gate for gate in explained.gates if gate.verdict == "unknown"), None)
    absent = gate is not None and gate.verdict == "deny" and gate.gate == "path"
    return Answer(explained.verdict, gate, absent)
