# SPDX-License-Identifier: Apache-2.0
"""What is read out of a config that may have any shape."""

from __future__ import annotations

import pytest

from gpuiso.hook.errors import HookError
from gpuiso.hook.state import State, allowed_access, rootfs_path, visible_gpus


def rules(*found: object) -> dict[str, object]:
    return {"linux": {"resources": {"devices": list(found)}}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ""),
        ({"linux": None}, ""),
        ({"linux": {"resources": {"devices": {}}}}, ""),
        (rules(None, 5, {"allow": True, "type": "b"}), ""),
        (rules({"allow": True}), "rwm"),
        (rules({"allow": True, "type": "c", "major": 195, "minor": -1, "access": "rw"}), "rw"),
        (rules({"allow": True, "type": "a"}, {"allow": False, "type": "c", "major": 195, "access": "m"}), "rw"),
        (rules({"allow": False}, {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rm"}), "rm"),
        (rules({"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rm"}), ""),
        (rules({"allow": "yes", "type": "c"}), ""),
    ],
)
def test_what_the_runtimes_rules_allow(config: dict[str, object], expected: str) -> None:
    assert allowed_access(config, 195, 0) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (None, []),
        ([{"path": "/dev/nvidia3"}, {"path": "/dev/nvidia0"}, {"path": "/dev/nvidia3"}], [0, 3]),
        ([{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia٣"}, {"path": "/dev/nvidia99999999"}, {}, 7], []),
    ],
)
def test_which_gpus_a_config_makes(devices: object, expected: list[int]) -> None:
    assert visible_gpus({"linux": {"devices": devices}}) == expected


def test_where_the_root_lies() -> None:
    base = {"id": "c", "bundle": "/b"}
    assert rootfs_path(State({**base}), {"root": {"path": "rootfs"}}) == "/b/rootfs"
    assert rootfs_path(State({**base}), {"root": {"path": "/r"}}) == "/r"
    assert rootfs_path(State({**base, "root": "/merged"}), {"root": {"path": "/r"}}) == "/merged"
    with pytest.raises(HookError, match=r"root\.path is missing"):
        rootfs_path(State({**base}), {"root": {"path": "a\0b"}})
