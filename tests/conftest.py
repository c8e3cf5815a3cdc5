# SPDX-License-Identifier: Apache-2.0
"""Tiers, cgroups and Hypothesis settings for the whole test suite."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import tiers
from tests.lab.fixtures import lab12, lab13  # noqa: F401 (fixtures of every package)

CGROUP_PREFIX = "gpuiso-test-"

# A slow machine is no failure of the code under test.
hypothesis.settings.register_profile("gpuiso", deadline=None, print_blob=True)
hypothesis.settings.load_profile("gpuiso")


def pytest_configure() -> None:
    try:
        tiers.required_tiers()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> list[str]:
    reasons = {tier: tiers.reason(tier) for tier in tiers.PROBES}
    enabled = ", ".join(tier for tier, why in reasons.items() if why is None)
    disabled = "; ".join(f"{tier} ({why})" for tier, why in reasons.items() if why is not None)
    required = ", ".join(sorted(tiers.required_tiers()))
    return [
        f"tiers enabled: {enabled}",
        f"tiers disabled: {disabled or 'none'}",
        f"tiers required: {required or 'none'}",
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the marks of its tiers, so that ``-m kernel`` and ``-m "not lab"`` select by them."""
    for item in items:
        for tier in _tiers_of(item):
            item.add_marker(tier)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tier in _tiers_of(item):
        why = tiers.reason(tier)
        if why is None:
            continue
        if tier in tiers.required_tiers():
            pytest.fail(f"GPUISO_REQUIRE names tier {tier}, which this machine cannot run: {why}", pytrace=False)
        pytest.skip(f"tier {tier}: {why}")


def _tiers_of(item: pytest.Item) -> list[str]:
    named = (tier for mark in item.iter_markers("requires") for tier in mark.args)
    return sorted(set(named), key=list(tiers.PROBES).index)


@pytest.fixture(scope="session")
def cgroup2_root() -> Path:
    """The cgroup2 mount, swept of what an interrupted run left there."""
    mount = tiers.cgroup2_mount()
    if mount is None:
        pytest.skip("no cgroup2 mount")
    for stale in sorted(mount.glob(f"{CGROUP_PREFIX}*")):
        owner = stale.name.removeprefix(CGROUP_PREFIX).split("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _remove_cgroup(stale)
    return mount


@pytest.fixture
def tmp_cgroup(cgroup2_root: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new, empty cgroup2 directory; its tasks are killed and its tree removed afterwards."""
    path = cgroup2_root / f"{CGROUP_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    path.mkdir()
    yield path
    _remove_cgroup(path)


def _remove_cgroup(top: Path) -> None:
    """Remove a cgroup tree, leaves first. Raises OSError (EBUSY) if tasks outlive a second of SIGKILL."""
    directories = [Path(root) for root, _, _ in os.walk(top, topdown=False)]
    for directory in directories:
        for pid in (directory / "cgroup.procs").read_text().split():
            if int(pid) == os.getpid():
                raise RuntimeError(f"the test left its own process in {directory}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    for directory in directories:
        for attempt in range(100):
            try:
                directory.rmdir()
                break
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.01)
