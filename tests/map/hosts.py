# SPDX-License-Identifier: Apache-2.0
"""Recorded hosts with containers and services, as runc and systemd leave them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuiso.devfilter.insn import pack
from gpuiso.doctor.map.model import Cell, GpuMap, State, Workload
from gpuiso.policy.parse import parse_rules
from tests.devfilter.layouts import runc
from tests.records import UUIDS, RecordMaker

__all__ = ["MapMaker", "cell", "cells", "states", "workload"]

_DOCKER = """deny a
allow c *:* m
allow b *:* m
allow c 1:3 rwm
allow c 1:5 rwm
allow c 1:8 rwm
allow c 1:9 rwm
allow c 5:0 rwm
allow c 5:1 rwm
allow c 136:* rwm
"""
_DEVTMPFS = "25 1 0:5 / /dev rw,nosuid - devtmpfs udev rw\n1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
_OWN_DEV = "25 1 0:30 / /dev rw,nosuid - tmpfs tmpfs rw\n1 0 0:40 / / rw - overlay overlay rw\n"


def container_id(name: str) -> str:
    return name.encode().hex().ljust(64, "0")[:64]


class MapMaker(RecordMaker):
    """A record with ``gpus`` GPUs, and no process until some are added."""

    def __init__(self, directory: Path, gpus: int = 2) -> None:
        super().__init__(directory)
        self.uuids = list(UUIDS)
        for index in range(2, gpus):
            self.uuids.append(f"GPU-{index:08d}-3333-3333-3333-333333333333")
            self.add_gpu(index, index, self.uuids[index])
        self.cgroups["/system.slice"] = {"device_programs": []}

    def program(self, gpus: Iterable[int], *, number: int = 1) -> dict[str, Any]:
        """runc's program for a container with these GPUs."""
        text = "".join(f"allow c 195:{gpu} rw\n" for gpu in gpus)
        text += "allow c 195:255 rw\nallow c 238:* rw\n"
        insns = pack(runc(parse_rules(_DOCKER + text))).hex()
        return {"id": number, "name": "", "tag": "ab", "attach_flags": 2, "insns": insns}

    def container(
        self,
        pid: int,
        name: str,
        env: Mapping[str, str] | None = None,
        *,
        gpus: Collection[int] = (),
        allowed: Collection[int] | None = None,
        holds: tuple[str, ...] = (),
    ) -> None:
        """A Docker container; ``gpus`` are the nodes in its /dev, ``allowed`` those its filter lets pass."""
        path = f"/system.slice/docker-{container_id(name)}.scope"
        nodes = {f"/dev/nvidia{gpu}": (195, gpu) for gpu in gpus}
        nodes |= {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (238, 0)}
        self.add_process(pid, env, cgroup=path, descriptors=holds, own_dev=nodes)
        self.files[f"/proc/{pid}/mountinfo"] = _OWN_DEV
        self.cgroups[path] = {"device_programs": [self.program(gpus if allowed is None else allowed, number=pid)]}
        self._namespace(pid, 4026600000 + pid)
        docker = self.tools.setdefault("docker.json", {"info": {}, "containers": {}})
        docker["containers"][container_id(name)] = {"Name": f"/{name}"}

    def process(
        self,
        pid: int,
        env: Mapping[str, str] | None = None,
        *,
        cgroup: str = "/",
        holds: tuple[str, ...] = (),
        uid: int = 0,
    ) -> None:
        """A process in the host's mount namespace."""
        self.add_process(pid, env, cgroup=cgroup, descriptors=holds, uid=uid)
        self.files[f"/proc/{pid}/mountinfo"] = _DEVTMPFS
        self._namespace(pid, 4026531841)

    def _namespace(self, pid: int, number: int) -> None:
        path = f"/proc/{pid}/ns/mnt"
        self.nodes[path] = {"path": path, "type": "l", "target": f"mnt:[{number}]"}
        # Descriptors of a process that holds nothing are known to be none.
        self.nodes.setdefault(f"/proc/{pid}/fd", {"path": f"/proc/{pid}/fd", "type": "d"})
        self.add_descriptor(pid, "/dev/null")

    def add_descriptor(self, pid: int, target: str) -> None:
        path = f"/proc/{pid}/fd/99"
        self.nodes[path] = {"path": path, "type": "l", "target": target}

    def nvml(self, *processes: Mapping[int, int]) -> None:
        """NVML's answer: for each GPU, MiB by pid."""
        self.tools["nvml.json"] = {
            "driver_version": "580.159.04",
            "cuda_version": "13.0",
            "gpus": [
                {
                    "index": index,
                    "uuid": uuid,
                    "pci_bus_id": f"00000000:{index:02x}:00.0",
                    "minor": index,
                    "memory_total_mib": 143771,
                    "memory_used_mib": sum(held.values()),
                    "mig_mode": "Disabled",
                    "processes": [{"pid": pid, "type": "C", "used_memory_mib": size} for pid, size in held.items()],
                }
                for index, (uuid, held) in enumerate(zip(self.uuids, processes, strict=True))
            ],
        }


def workload(found: GpuMap, name: str) -> Workload:
    """The one workload whose name begins so."""
    (matching,) = (w for w in found.workloads if w.name.startswith(name))
    return matching


def cells(found: GpuMap, name: str) -> tuple[Cell, ...]:
    return workload(found, name).cells


def cell(found: GpuMap, name: str, gpu: int) -> Cell:
    return cells(found, name)[gpu]


def states(found: GpuMap) -> dict[str, tuple[State, ...]]:
    """The states of all cells by workload."""
    return {w.name: tuple(c.state for c in w.cells) for w in found.workloads}
