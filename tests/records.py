# SPDX-License-Identifier: Apache-2.0
"""Small recorded hosts made for a test: two H200-like GPUs, one process, and whatever the test changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuiso.host.recorded import RecordedHost

__all__ = ["UUIDS", "RecordMaker"]

UUIDS = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")

_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
238 nvidia-uvm
241 nvidia-caps

Block devices:
254 virtblk
"""
_VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@)  \n"
_STATUS = """Name:\ttrain
State:\tS (sleeping)
PPid:\t1
Uid:\t{uid}\t{uid}\t{uid}\t{uid}
Gid:\t{uid}\t{uid}\t{uid}\t{uid}
Groups:\t{uid}
NSpid:\t{pid}
CapEff:\t{caps}
Seccomp:\t0
NoNewPrivs:\t0
"""


def _node(path: str, major: int, minor: int, mode: str = "0666") -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor, "mode": mode, "uid": 0, "gid": 0}


class RecordMaker:
    """A record under construction. ``files`` are those of root/, ``nodes`` the lines of nodes.jsonl by path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[str, str | None] = {
            "/proc/devices": _DEVICES,
            "/proc/modules": "nvidia_uvm 1830912 0 - Live 0x0 (O)\nnvidia 14299136 1 nvidia_uvm, Live 0x0 (O)\n",
            "/proc/driver/nvidia/version": _VERSION,
            "/proc/driver/nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n",
        }
        self.header: dict[str, Any] = {
            "format": "gpuiso-host/1",
            "captured": "2026-11-30T00:00:00Z",
            "kernel": "6.18.0",
            "cgroup_mode": "unified",
            "systemd": True,
            "note": "",
        }
        self.nodes: dict[str, dict[str, Any]] = {}
        self.tools: dict[str, Any] = {}
        self.cgroups: dict[str, Any] = {"/": {"device_programs": []}}
        for index, uuid in enumerate(UUIDS):
            self.add_gpu(index, index, uuid)
        for path, major, minor in (("nvidiactl", 195, 255), ("nvidia-uvm", 238, 0), ("nvidia-uvm-tools", 238, 1)):
            self.add_node(f"/dev/{path}", major, minor)

    def add_node(self, path: str, major: int, minor: int, mode: str = "0666") -> None:
        self.nodes[path] = _node(path, major, minor, mode)

    def add_gpu(self, index: int, minor: int, uuid: str, model: str = "NVIDIA H200") -> None:
        address = f"0000:{index:02x}:00.0"
        self.files[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t {model}\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
            "GPU Excluded:\t No\n"
        )
        for name, value in (("vendor", "0x10de"), ("device", "0x2335"), ("class", "0x030200")):
            self.files[f"/sys/bus/pci/devices/{address}/{name}"] = f"{value}\n"
        self.nodes[f"/sys/bus/pci/devices/{address}/driver"] = {
            "path": f"/sys/bus/pci/devices/{address}/driver",
            "type": "l",
            "target": "../../../bus/pci/drivers/nvidia",
        }
        self.add_node(f"/dev/nvidia{minor}", 195, minor)

    def add_process(
        self,
        pid: int,
        env: Mapping[str, str] | None = None,
        *,
        uid: int = 0,
        cgroup: str = "/job",
        descriptors: tuple[str, ...] = (),
        own_dev: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """A process; ``own_dev`` are the nodes of its private /dev, by default it sees the host's."""
        base = f"/proc/{pid}"
        caps = "000001ffffffffff" if uid == 0 else "0000000000000000"
        self.files[f"{base}/status"] = _STATUS.format(uid=uid, pid=pid, caps=caps)
        self.files[f"{base}/comm"] = "train\n"
        self.files[f"{base}/stat"] = f"{pid} (train) S 1 {' '.join(['0'] * 17)} 4242 0 0\n"
        self.files[f"{base}/environ"] = "".join(f"{name}={value}\0" for name, value in (env or {}).items())
        self.files[f"{base}/cgroup"] = f"0::{cgroup}\n"
        self.files[f"{base}/mountinfo"] = (
            "25 1 0:5 / /dev rw,nosuid - devtmpfs udev rw\n1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        )
        self.cgroups.setdefault(cgroup, {"device_programs": []})
        nodes = own_dev
        if nodes is None:
            nodes = {p: (n["major"], n["minor"]) for p, n in self.nodes.items() if p.startswith("/dev/")}
        for path, (major, minor) in nodes.items():
            self.add_node(f"{base}/root{path}", major, minor)
        for number, target in enumerate(descriptors):
            path = f"{base}/fd/{number}"
            self.nodes[path] = {"path": path, "type": "l", "target": target}

    def write(self) -> Path:
        """Writes the record and returns its directory. Files set to None are left out."""
        root = self.directory / "root"
        for path, content in self.files.items():
            if content is not None:
                place = root / path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(content)
        (self.directory / "record.json").write_text(json.dumps(self.header))
        (self.directory / "nodes.jsonl").write_text("".join(json.dumps(n) + "\n" for n in self.nodes.values()))
        (self.directory / "cgroups.json").write_text(json.dumps(self.cgroups))
        for name, content in self.tools.items():
            (self.directory / "tools").mkdir(exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            (self.directory / "tools" / name).write_text(text)
        return self.directory

    def host(self) -> RecordedHost:
        return RecordedHost(str(self.write()))
