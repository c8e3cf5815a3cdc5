# SPDX-License-Identifier: Apache-2.0
"""What a unit says about devices, from D-Bus and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.doctor.unit_settings import Entry, covers, group_is_known, unit_settings
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Node
from tests.records import RecordMaker

NVIDIA0 = Node("/dev/nvidia0", "c", 0o666, major=195, minor=0)
UVM = Node("/dev/nvidia-uvm", "c", 0o666, major=238, minor=0)


def test_from_dbus(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.tools["systemd.json"] = {
        "a.service": {"PrivateDevices": True, "DevicePolicy": "closed", "DeviceAllow": [["/dev/nvidia0", "rw"]]},
        "gone.service": None,
        "b.mount": {"Id": "b.mount"},
    }
    found = unit_settings(maker.host(), "a.service")
    assert found is not None
    assert (found.private_devices, found.policy, found.allow) == (True, "closed", (Entry("/dev/nvidia0", "rw"),))
    assert unit_settings(maker.host(), "gone.service") is None
    with pytest.raises(Unknown):
        unit_settings(maker.host(), "b.mount")


def test_from_files(tmp_path: Path) -> None:
    """The unit in /etc hides that of the package; drop-ins go by name; an empty value begins the list anew."""
    maker = RecordMaker(tmp_path)
    maker.files["/usr/lib/systemd/system/a.service"] = "[Service]\nPrivateDevices=yes\n"
    maker.files["/etc/systemd/system/a.service"] = "[Service]\nDeviceAllow=/dev/kvm\nDeviceAllow=/dev/fuse r\n"
    maker.files["/etc/systemd/system/a.service.d/20.conf"] = "[Service]\nDeviceAllow=/dev/nvidia0 rw\n"
    maker.files["/usr/lib/systemd/system/a.service.d/10.conf"] = "[Service]\nDeviceAllow=\nDevicePolicy=strict\n"
    found = unit_settings(maker.host(), "a.service")
    assert found is not None
    assert not found.private_devices
    assert found.policy == "strict"
    assert found.allow == (Entry("/dev/nvidia0", "rw"),)
    assert "/etc/systemd/system/a.service.d/20.conf" in found.source


def test_an_instance_is_read_from_its_template(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/etc/systemd/system/job@.service"] = "[Service]\nPrivateDevices=true\n"
    found = unit_settings(maker.host(), "job@7.service")
    assert found is not None
    assert (found.private_devices, found.policy) == (True, "closed")


def test_a_unit_of_which_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(Unknown):
        unit_settings(RecordMaker(tmp_path).host(), "a.service")


@pytest.mark.parametrize(
    ("spec", "access", "node", "answer"),
    [
        ("/dev/nvidia0", "rw", NVIDIA0, True),
        ("/dev/nvidia0", "rwm", NVIDIA0, True),
        ("/dev/nvidia0", "r", NVIDIA0, False),
        ("/dev/nvidia1", "rw", NVIDIA0, False),
        ("/dev/char/195:0", "rwm", NVIDIA0, True),
        ("/dev/char/195:1", "rwm", NVIDIA0, False),
        ("char-nvidia", "rw", NVIDIA0, True),
        ("char-nvidia*", "rw", UVM, True),
        ("char-nvidia-uvm", "rw", NVIDIA0, False),
        ("char-195", "rw", NVIDIA0, True),
        ("char-*", "rwm", UVM, True),
        ("char-*", "m", UVM, False),
        ("block-*", "rwm", UVM, False),
    ],
)
def test_what_an_entry_covers(tmp_path: Path, spec: str, access: str, node: Node, answer: bool) -> None:
    assert covers(RecordMaker(tmp_path).host(), Entry(spec, access), node.path, node) is answer


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ("char-nvidia", True),
        ("char-nvidia-frontend", False),
        ("char-nvidia*", True),
        ("char-pts", True),
        ("char-*", True),
        ("char-195", True),
        ("/dev/nvidia0", True),
        ("block-virtblk", True),
        ("block-sd", False),
    ],
)
def test_groups_that_the_kernel_knows(tmp_path: Path, spec: str, answer: bool) -> None:
    assert group_is_known(RecordMaker(tmp_path).host(), Entry(spec, "rw")) is answer
