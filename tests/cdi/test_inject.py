# SPDX-License-Identifier: Apache-2.0
"""Injection beyond the recorded cases."""

from __future__ import annotations

from typing import Any

import pytest

from gpuiso.cdi.inject import apply_edits
from gpuiso.cdi.spec import ContainerEdits, DeviceNode, IntelRdt
from gpuiso.errors import BadInput, NotFound
from tests.cdi.fake_host import FakeHost, node
from tests.cdi.nvidia_host import char

HOST = FakeHost([char("/dev/gpu", 195, 0, 0o660), node("/dev/disk", "b", major=8, minor=1), node("/etc/passwd")])


def inject_node(entry: DeviceNode, config: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = apply_edits(HOST, ContainerEdits(device_nodes=(entry,)), config or {})["linux"]
    return found


def test_a_stale_major_is_kept_as_the_engines_keep_it() -> None:
    """No engine compares; that is why the lint and refresh do."""
    for kind in ("", "c"):
        linux = inject_node(DeviceNode("/dev/gpu", type=kind, major=7, minor=9))
        assert (linux["devices"][0]["major"], linux["devices"][0]["minor"]) == (7, 9)


def test_no_major_means_both_numbers_of_the_host() -> None:
    (row,) = inject_node(DeviceNode("/dev/gpu", type="c", minor=9))["devices"]
    assert row == {"path": "/dev/gpu", "type": "c", "major": 195, "minor": 0, "fileMode": 0o660}


def test_block_devices_get_a_rule_too() -> None:
    linux = inject_node(DeviceNode("/dev/x", host_path="/dev/disk", permissions="r"))
    assert linux["resources"]["devices"] == [{"allow": True, "type": "b", "major": 8, "minor": 1, "access": "r"}]


@pytest.mark.parametrize(
    ("entry", "error", "said"),
    [
        (DeviceNode("/dev/none"), NotFound, "/dev/none: it does not exist"),
        (DeviceNode("/etc/passwd"), NotFound, "/etc/passwd: it is not a device node"),
        (DeviceNode("/dev/gpu", type="b"), BadInput, "the spec says type 'b', /dev/gpu is of type 'c'"),
    ],
)
def test_a_node_the_host_contradicts(entry: DeviceNode, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        inject_node(entry)


def test_nulls_and_empty_lists_go_and_unknown_members_stay() -> None:
    config: dict[str, Any] = {
        "process": None,
        "mounts": [],
        "hooks": {"prestart": None},
        "linux": {"devices": None, "seccomp": {"x": []}},
        "vendor.extension": {"kept": None},
    }
    assert apply_edits(HOST, ContainerEdits(intel_rdt=IntelRdt(clos_id="c")), config) == {
        "ociVersion": "",
        "hooks": {},
        "linux": {"seccomp": {"x": []}, "intelRdt": {"closID": "c"}},
        "vendor.extension": {"kept": None},
    }


def test_groups_come_once_and_zero_never() -> None:
    config = {"process": {"user": {"uid": 1, "additionalGids": [5]}}}
    edited = apply_edits(HOST, ContainerEdits(additional_gids=(0, 5, 6, 6)), config)
    assert edited["process"] == {"user": {"uid": 1, "gid": 0, "additionalGids": [5, 6]}, "cwd": ""}
