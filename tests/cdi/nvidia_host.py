# SPDX-License-Identifier: Apache-2.0
"""Made-up hosts with GPUs, for what the recorded one does not have."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from gpuiso.host.protocol import Node
from tests.cdi.fake_host import FakeHost, node

__all__ = ["CAPS", "DEVICES", "VERSION", "char", "ldcache", "link", "nvidia_host", "pci_files"]

VERSION = "580.126.09"
LIB = "/usr/lib/x86_64-linux-gnu"
DEVICES = {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 510, "nvidia-caps": 511}


def char(path: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> Node:
    return node(path, "c", mode=mode, major=major, minor=minor, gid=gid)


def link(path: str, target: str) -> Node:
    return node(path, "l", mode=0o777, target=target)


def pci_files(address: str, vendor: str, kind: str = "0x030200") -> dict[str, str]:
    base = f"/sys/bus/pci/devices/{address}"
    return {f"{base}/vendor": f"{vendor}\n", f"{base}/device": "0x2335\n", f"{base}/class": f"{kind}\n"}


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-00000000000{index}"


def nvidia_host(
    gpus: int = 2,
    *,
    nodes: Iterable[Node] = (),
    without: Iterable[str] = (),
    files: Mapping[str, str | bytes] | None = None,
    devices: Mapping[str, int] = DEVICES,
    libraries: str = LIB,
    nvml: Any = None,
) -> FakeHost:
    """A host with ``gpus`` GPUs at 0000:0N:00.0, minors 0 to N-1, their nodes and a driver in the usual
    places.
    """
    entries = {entry.path: entry for entry in _nodes(gpus, devices, libraries)} | {e.path: e for e in nodes}
    texts: dict[str, str | bytes] = {
        "/proc/devices": "Character devices:\n" + "".join(f"{n:3} {name}\n" for name, n in devices.items()),
        "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Mon Dec\n",
    }
    for index in range(gpus):
        address = f"0000:0{index}:00.0"
        texts |= pci_files(address, "0x10de")
        texts[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t NVIDIA H200\nGPU UUID: \t {uuid(index)}\nDevice Minor: \t {index}\n"
        )
    for path in without:
        entries.pop(path, None)
    return FakeHost(entries.values(), texts | dict(files or {}), nvml=nvml)


def _nodes(gpus: int, devices: Mapping[str, int], libraries: str) -> Iterable[Node]:
    for index in range(gpus):
        yield char(f"/dev/nvidia{index}", 195, index)
        yield link(f"/sys/bus/pci/devices/0000:0{index}:00.0/driver", "../../../bus/pci/drivers/nvidia")
    yield char("/dev/nvidiactl", 195, 255)
    yield char("/dev/nvidia-uvm", devices.get("nvidia-uvm", 0), 0)
    yield char("/dev/nvidia-uvm-tools", devices.get("nvidia-uvm", 0), 1)
    yield node(f"{libraries}/libcuda.so.{VERSION}")
    yield link(f"{libraries}/libcuda.so.1", f"libcuda.so.{VERSION}")
    yield node(f"{libraries}/libnvidia-ml.so.{VERSION}")
    yield node("/usr/bin/nvidia-smi")


def ldcache(entries: Iterable[tuple[str, str, int]], *, behind_old: bool = False) -> bytes:
    """A cache in glibc's new format; entries are name, path and flags."""
    rows = list(entries)
    strings = b""
    table = b""
    start = 48 + 24 * len(rows)
    for name, path, flags in rows:
        key = start + len(strings)
        strings += name.encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, key, start + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    header = b"glibc-ld.so.cache1.1" + struct.pack("=II", len(rows), len(strings)) + bytes(20)
    new = header + table + strings
    if not behind_old:
        return new
    old = b"ld.so-1.7.0\0" + struct.pack("=I", 1) + struct.pack("=iII", 3, 0, 0)
    return old.ljust((len(old) + 7) & ~7, b"\0") + new


CAPS = (char("/dev/nvidia-caps/nvidia-cap12", 511, 12, 0o444), char("/dev/nvidia-caps/nvidia-cap13", 511, 13, 0o444))
