# SPDX-License-Identifier: Apache-2.0
"""Runs in a lab: the doctor on the lab itself, for which an NVIDIA driver's part of /proc and /sys is made up.

The lab has the driver's nodes and no driver. What is made up is what the driver would say of itself: its version, its
GPUs, its majors and its module. Everything else (nodes, mounts, cgroups, device programs, units, containers) is the
lab's own.

    python3 -m tests.lab_checks.examine PID      findings about a process, as JSON; PID 0: about the host
"""

from __future__ import annotations

import json
import re
import sys

from gpuiso.host import files
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import Node

UUIDS = ("GPU-6c0f5a3e-91d2-4b87-a4c6-3f1e0d5b7a28", "GPU-d27b84f1-05ce-49a3-8b16-7e94c2d0a35f")
VERSION = "580.159.04"


class LabHost(LiveHost):
    """The lab as if two GPUs were in it."""

    def __init__(self) -> None:
        super().__init__()
        uvm = files.stat_node("/dev/nvidia-uvm")
        self.uvm_major = 0 if uvm is None else uvm.major or 0
        self.made_up = self._driver()

    def _driver(self) -> dict[str, bytes]:
        devices = (files.read_file("/proc/devices") or b"").decode()
        lines = f"195 nvidia\n195 nvidiactl\n{self.uvm_major} nvidia-uvm\n"
        found = {
            "/proc/devices": devices.replace("\nBlock devices:", f"{lines}\nBlock devices:"),
            "/proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n",
            "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}\n",
            "/proc/driver/nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n",
        }
        for minor, uuid in enumerate(UUIDS):
            address = f"0000:0{minor + 1}:00.0"
            found[f"/proc/driver/nvidia/gpus/{address}/information"] = (
                f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
            )
        return {path: text.encode() for path, text in found.items()}

    def _mine(self, path: str) -> bool:
        return path.startswith(("/proc/driver/nvidia", "/sys/bus/pci/devices")) or path in self.made_up

    def read(self, path: str) -> bytes | None:
        return self.made_up.get(path) if self._mine(path) else super().read(path)

    def listdir(self, path: str) -> tuple[str, ...] | None:
        if not self._mine(path):
            return super().listdir(path)
        below = re.compile(re.escape(path.rstrip("/")) + "/([^/]+)")
        return tuple(sorted({match[1] for match in map(below.match, self.made_up) if match is not None}))

    def _node(self, path: str) -> Node | None:
        if path in self.made_up:
            return Node(path, "f", 0o444)
        return Node(path, "d", 0o555) if self.listdir(path) else None

    def prefetch(self) -> None:
        """Nothing: there is no NVML to ask, and looking for it takes an emulated machine too long."""

    def nvml(self) -> None:
        return None

    def stat(self, path: str) -> Node | None:
        return self._node(path) if self._mine(path) else super().stat(path)

    def lstat(self, path: str) -> Node | None:
        return self._node(path) if self._mine(path) else super().lstat(path)


def main() -> int:
    """Prints the findings, most severe first."""
    from gpuiso.doctor.engine import examine

    pid = int(sys.argv[1])
    report = examine(LabHost(), pid=pid or None)
    print(json.dumps([finding.as_json() for finding in report.findings]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
