# SPDX-License-Identifier: Apache-2.0
"""Which kernel driver holds a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.findings import found, severities
from tests.records import RecordMaker

ADDRESSES = ("0000:00:00.0", "0000:01:00.0")


def bus(directory: Path, driver: str | None, modules: str = "") -> RecordMaker:
    """A host on whose bus the GPUs are, without NVIDIA's driver having them."""
    maker = RecordMaker(directory)
    maker.files = {path: text for path, text in maker.files.items() if "/proc/driver/nvidia" not in path}
    maker.files["/proc/devices"] = "Character devices:\n  1 mem\n226 drm\n"
    maker.files["/proc/modules"] = modules
    maker.nodes = {"/dev/null": {"path": "/dev/null", "type": "c", "major": 1, "minor": 3}}
    for address in ADDRESSES:
        path = f"/sys/bus/pci/devices/{address}/driver"
        if driver is not None:
            maker.nodes[path] = {"path": path, "type": "l", "target": f"../../../bus/pci/drivers/{driver}"}
    return maker


@pytest.mark.parametrize(
    ("modules", "severity"), [("nouveau 1 0 - Live 0x0\n", "warning"), ("nvidia 1 0 - Live 0x0 (O)\n", "error")]
)
def test_nouveau(tmp_path: Path, modules: str, severity: str) -> None:
    maker = bus(tmp_path, "nouveau", modules)
    assert severities(maker) == [("GPU-NOUVEAU", severity)]


def test_nouveau_beside_an_installed_driver(tmp_path: Path) -> None:
    maker = bus(tmp_path, "nouveau", "nouveau 1 0 - Live 0x0\n")
    maker.files["/lib/modules/6.18.0/modules.dep"] = "extra/nvidia.ko.xz:\n"
    [finding] = found(maker, "GPU-NOUVEAU")
    assert finding.severity == "error"
    assert "blacklist nouveau" in str(finding.fix[0].command)


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub"])
def test_passthrough(tmp_path: Path, driver: str) -> None:
    assert severities(bus(tmp_path, driver, "vfio_pci 1 0 - Live 0x0\n")) == [("GPU-VFIO", "info")]


@pytest.mark.parametrize(("descriptor", "severity"), [("/dev/null", "warning"), ("/dev/vfio/17", "info")])
def test_a_driver_that_passthrough_left_nothing(tmp_path: Path, descriptor: str, severity: str) -> None:
    maker = bus(tmp_path, "vfio-pci", "nvidia 1 0 - Live 0x0 (O)\n")
    maker.add_process(90, descriptors=(descriptor,))
    assert severities(maker) == [("GPU-VFIO", severity)]


def test_one_gpu_for_virtual_machines_and_one_for_the_host(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.add_process(90)
    address = "0000:02:00.0"
    for name, value in (("vendor", "0x10de"), ("device", "0x2335"), ("class", "0x030200")):
        maker.files[f"/sys/bus/pci/devices/{address}/{name}"] = f"{value}\n"
    path = f"/sys/bus/pci/devices/{address}/driver"
    maker.nodes[path] = {"path": path, "type": "l", "target": "../../../bus/pci/drivers/vfio-pci"}
    [finding] = found(maker, "GPU-VFIO")
    assert (finding.severity, finding.target.gpu) == ("info", address)
    assert f"echo {address} > /sys/bus/pci/drivers/vfio-pci/unbind" in str(finding.fix[0].command)


def test_no_driver_and_none_installed(tmp_path: Path) -> None:
    assert severities(bus(tmp_path, None)) == [("GPU-MODULE-NOT-LOADED", "warning")]


@pytest.mark.parametrize(
    "message",
    [
        "systemd-modules-load[412]: Failed to insert module 'nvidia': Key was rejected by service",
        "Loading of unsigned module is rejected",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
    ],
)
def test_a_rejected_signature(tmp_path: Path, message: str) -> None:
    maker = bus(tmp_path, None)
    maker.tools["dmesg.txt"] = f"[    1.0] audit: on\n[    6.1] {message}\n"
    [finding] = found(maker, "GPU-MODULE-NOT-LOADED")
    assert finding.severity == "error"
    assert "signature" in finding.cause
    assert message in finding.evidence[-1].says


def test_a_module_that_only_taints_was_not_rejected(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.tools["dmesg.txt"] = (
        "[ 1.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel\n"
    )
    assert severities(maker) == []


def test_a_gpu_that_the_driver_refused(tmp_path: Path) -> None:
    maker = bus(tmp_path, None, "nvidia 1 0 - Live 0x0 (O)\n")
    refusal = "NVRM: The NVIDIA GPU 0000:00:00.0 (PCI ID: 10de:1b06) is not supported by open nvidia.ko"
    maker.tools["dmesg.txt"] = f"[    7.2] {refusal}\n"
    [finding] = found(maker, "GPU-MODULE-NOT-LOADED")
    assert finding.severity == "error"
    assert "did not take them" in finding.cause
    assert refusal in finding.evidence[-1].says


@pytest.mark.parametrize(
    ("listed", "words"),
    [("updates/dkms/nvidia.ko.zst:\n", "installed for kernel 6.18.0"), ("kernel/a.ko:\n", "none for the running")],
)
def test_a_module_that_is_there_or_not(tmp_path: Path, listed: str, words: str) -> None:
    maker = bus(tmp_path, None)
    maker.files["/lib/modules/6.18.0/modules.dep"] = listed
    [finding] = found(maker, "GPU-MODULE-NOT-LOADED")
    assert words in finding.cause
