# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need real GPUs."""

from __future__ import annotations

import pytest

from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.model import Inventory
from gpuiso.host.live import LiveHost


@pytest.fixture(scope="session")
def inventory() -> Inventory:
    """The GPUs of this machine."""
    return build_inventory(LiveHost(nvml_deadline=60))


@pytest.fixture
def two_gpus(inventory: Inventory) -> Inventory:
    """The same where there are at least two."""
    if len(inventory.of("nvidia")) < 2:
        pytest.skip("needs two GPUs")
    return inventory
