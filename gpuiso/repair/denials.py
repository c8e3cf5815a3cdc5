# SPDX-License-Identifier: Apache-2.0
"""Which device programs, and which lists of cgroup v1, deny the nodes of a container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuiso.apply.target import levels
from gpuiso.devfilter.interpret import Access
from gpuiso.devfilter.levels import Level, ProgramVerdict, judge
from gpuiso.errors import Unknown
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import DeviceProgram, Host
from gpuiso.policy.rule import DeviceType, mask
from gpuiso.policy.v1 import V1State, read_devices_list

__all__ = ["ACCESS", "Denial", "Filters"]

ACCESS = mask("rw")


@dataclass(frozen=True)
class Denial:
    """One program (None: the list of cgroup v1) of one cgroup that denies a device."""

    cgroup: str
    program: DeviceProgram | None
    owner: str
    rule: str | None

    @property
    def words(self) -> str:
        if self.program is None:
            return f"devices.list of {self.cgroup} (cgroup v1)"
        return f"program {self.program.id} of {self.owner} at {self.cgroup}"


class Filters:
    """All that filters the devices of one process, as it is now."""

    def __init__(self, host: Host, pid: int) -> None:
        places = process.cgroups(host, pid)
        self._host = host
        self.tree: list[Level] = []
        self.v1: tuple[str, str, V1State] | None = None
        """Mount, cgroup and state of the devices controller, where the process is in one with a list."""
        if "" in places and host.cgroup_mode != "legacy":
            self.tree = [self._level(path) for path in levels(places[""])]
        if "devices" in places and places["devices"] != "/":
            mount, cgroup = cgroup_mount(host, "devices"), places["devices"]
            text = None if mount is None else host.text(f"{mount}{cgroup}/devices.list")
            if mount is not None and text is not None:
                self.v1 = (mount, cgroup, read_devices_list(text))

    def _level(self, path: str) -> Level:
        programs = self._host.device_programs(path)
        if programs is None:
            raise Unknown(f"device programs of {path}", "the cgroup is not to be seen from here")
        return Level(path, programs)

    def denials(self, kind: DeviceType, major: int, minor: int, bits: int = ACCESS) -> list[Denial]:
        """Everything that denies an access. :raises Unknown: of a program it is not known what it answers."""
        found = []
        for level, program in self._verdicts(Access(kind, major, minor, bits)):
            if program.value == "unknown":
                raise Unknown(f"program {program.program.id} at {level}", program.why)
            if program.value == "deny":
                found.append(Denial(level, program.program, program.owner.name, program.rule))
        if self.v1 is not None and self._v1_denies(self.v1[2], kind, major, minor, bits):
            found.append(Denial(self.v1[1], None, "cgroup v1", None))
        return found

    @staticmethod
    def _v1_denies(state: V1State, kind: DeviceType, major: int, minor: int, bits: int) -> bool:
        return state.exceptions is not None and not state.allows(kind, major, minor, bits)

    def _verdicts(self, access: Access) -> list[tuple[str, ProgramVerdict]]:
        verdict = judge(self.tree, access, maps=self._host.bpf_map, helpers=self._host.kernel_function)
        return [(level.path, program) for level in verdict.levels if not level.overridden for program in level.programs]

    def beside(self, kind: DeviceType, major: int, minor: int, cgroups: Sequence[str]) -> list[ProgramVerdict]:
        """What every program of these cgroups answers."""
        return [program for path, program in self._verdicts(Access(kind, major, minor, ACCESS)) if path in cgroups]

    def programs(self, cgroup: str) -> Sequence[DeviceProgram]:
        """Those of one level."""
        return next((level.programs or () for level in self.tree if level.path == cgroup), ())
