# SPDX-License-Identifier: Apache-2.0
"""A tier that a machine lacks is a skip with its reason, and a failure where it is required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.support import REPOSITORY, make_fake_tree

# A test directory whose machine has the tier "kernel" and lacks the tier "gpu", whatever this one has.
CONFTEST = """
from tests import tiers

tiers.PROBES["gpu"] = lambda: "the bus is empty"
tiers.PROBES["kernel"] = lambda: None
tiers.reason.cache_clear()
"""
TESTS = """
from tests.tiers import requires

@requires("gpu")
def test_gpu(): pass

@requires("kernel")
def test_kernel(): pass

def test_unit(): pass
"""


def run_pytest(directory: Path, *options: str, require: str = "") -> subprocess.CompletedProcess[str]:
    make_fake_tree(directory, {"conftest.py": CONFTEST, "test_example.py": TESTS})
    argv = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--no-header"]
    argv += ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(REPOSITORY), *options, str(directory)]
    environ = {**os.environ, "GPUISO_REQUIRE": require}
    return subprocess.run(argv, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)


def test_a_missing_tier_is_skipped_with_its_reason(tmp_path: Path) -> None:
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped" in done.stdout
    assert "tier gpu: the bus is empty" in done.stdout


def test_a_required_tier_that_is_missing_fails(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, require="kernel,gpu")
    assert done.returncode == 1
    assert "names tier gpu, which this machine cannot run: the bus is empty" in done.stdout
    assert "2 passed, 1 error" in done.stdout


@pytest.mark.parametrize(("selection", "summary"), [("kernel", "1 passed"), ("not gpu", "2 passed")])
def test_tiers_can_be_selected(tmp_path: Path, selection: str, summary: str) -> None:
    assert summary in run_pytest(tmp_path, "-m", selection).stdout


def test_an_unknown_required_tier_ends_the_run(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, require="kernle")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "GPUISO_REQUIRE: no such tier: kernle" in done.stderr


def test_a_misspelt_mark_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such tier: 'kernle'"):
        tiers.requires("kernle")


def test_required_tiers_are_read_from_the_environment() -> None:
    assert tiers.required_tiers({}) == frozenset()
    assert tiers.required_tiers({"GPUISO_REQUIRE": " lab, kernel,"}) == {"kernel", "lab"}


def test_every_tier_has_a_mark_and_gives_a_reason_or_none(pytestconfig: pytest.Config) -> None:
    marks = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert tiers.PROBES.keys() - {"unit"} <= marks
    assert tiers.reason("unit") is None
    assert all(tiers.reason(tier) != "" for tier in tiers.PROBES)


@tiers.requires("kernel")
def test_a_cgroup_is_made_for_a_test_and_its_tasks_end_with_it(tmp_cgroup: Path) -> None:
    assert (tmp_cgroup / "cgroup.procs").read_text() == ""
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            (tmp_cgroup / "cgroup.procs").write_text(str(child.pid))
            assert (tmp_cgroup / "cgroup.procs").read_text().split() == [str(child.pid)]
        finally:
            child.kill()


def test_a_fake_tree_stays_below_its_base(tmp_path: Path) -> None:
    tree = make_fake_tree(tmp_path, {"/proc/devices": "195 nvidia\n", "bin/tool": b"\x7fELF", "dev": None})
    assert (tree / "proc/devices").read_text() == "195 nvidia\n"
    assert (tree / "bin/tool").read_bytes() == b"\x7fELF"
    assert (tree / "dev").is_dir()
    with pytest.raises(ValueError, match="leaves"):
        make_fake_tree(tmp_path / "inner", {"../outside": ""})
    assert not (tmp_path / "outside").exists()
