# SPDX-License-Identifier: Apache-2.0
"""The fake driver, built once, and a fresh world for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuiso.reclaim.checkpoint import CheckpointHelper
from tests.reclaim.world import World, build_library


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libcuda."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return build_library(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def world(fake_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An empty host. Its path is short, because sockets live in it."""
    with tempfile.TemporaryDirectory(prefix="gpuiso-test-") as name:
        monkeypatch.setenv("FAKE_CUDA_DIR", name)
        world = World(Path(name), fake_library)
        yield world
        world.close()


@pytest.fixture
def helper(world: World) -> Iterator[CheckpointHelper]:
    """A helper that speaks to the fake driver."""
    with CheckpointHelper(str(world.library)) as helper:
        yield helper
