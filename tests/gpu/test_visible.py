# SPDX-License-Identifier: Apache-2.0
"""What gpuiso says a process sees, beside what the CUDA driver says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuiso.gpu.model import Inventory
from gpuiso.gpu.visibility import cuda_visible
from tests.gpu.place import cu_init
from tests.tiers import requires

pytestmark = requires("gpu")

VALUES = [
    None,
    "0",
    "1",
    "1,0",
    "0,0",
    "",
    "-1",
    "7",
    " 1x,+0",
    "9223372036854775808",
    "18446744073709551616",
    "-4294967295",
    "4294967296",
    "UUID0",
    "UUID0,1",
    "UUID1-prefix,UUID0",
    "UUID0-wrong-end",
]


def spelled(value: str, inventory: Inventory) -> str:
    """``value`` with the UUIDs of this machine."""
    uuids = [str(gpu.uuid) for gpu in inventory.of("nvidia")]
    first, last = uuids[0], uuids[-1]
    wrong = first[:7] + ("0" if first[7] != "0" else "1") + first[8:]
    for name, text in (("UUID0-wrong-end", wrong), ("UUID1-prefix", last[:12]), ("UUID0", first)):
        value = value.replace(name, text)
    return value


@pytest.mark.parametrize("value", VALUES)
def test_the_driver_agrees(
    value: str | None, inventory: Inventory, record_property: Callable[[str, object], None]
) -> None:
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": spelled(value, inventory)}
    driver = cu_init(env)
    ours = cuda_visible(inventory.of("nvidia"), env, driver_version=inventory.driver_version)
    record_property("note", f"cuInit {driver['cuInit']}, {len(driver['uuids'])} devices")
    assert (ours.cuInit, [gpu.uuid for gpu in ours.gpus]) == (driver["cuInit"], driver["uuids"])


@pytest.mark.parametrize("denied", ["gpu", "/dev/nvidiactl", "/dev/nvidia-uvm"])
@pytest.mark.parametrize(
    "env", [{}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_DEVICE_ORDER": "bogus"}]
)
def test_the_driver_agrees_under_denial(
    env: dict[str, str], denied: str, inventory: Inventory, record_property: Callable[[str, object], None]
) -> None:
    node = inventory.of("nvidia")[0].nodes[0].path if denied == "gpu" else denied
    driver = cu_init(env, [node])
    ours = cuda_visible(inventory.of("nvidia"), env, denied=[node], driver_version=inventory.driver_version)
    record_property("note", f"cuInit {driver['cuInit']}, {len(driver['uuids'])} devices")
    assert (ours.cuInit, [gpu.uuid for gpu in ours.gpus]) == (driver["cuInit"], driver["uuids"])
