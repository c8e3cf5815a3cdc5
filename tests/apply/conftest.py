# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.apply.world import World


@pytest.fixture
def world(tmp_cgroup: Path, tmp_path: Path) -> World:
    return World(tmp_cgroup, tmp_path / "run")
