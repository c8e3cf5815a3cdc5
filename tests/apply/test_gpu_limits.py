# SPDX-License-Identifier: Apache-2.0
"""gpu.max and gpu.memory.max of a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.apply.engine import carry_out
from gpuiso.apply.gpu_limits import memory_as_files
from gpuiso.apply.make_plan import make_plan
from gpuiso.apply.remove import remove
from gpuiso.apply.target import find_cgroup
from gpuiso.errors import NotSupported
from gpuiso.govern.registry import registered
from gpuiso.govern.running import governor_runs, only_governor
from gpuiso.host.live import LiveHost
from gpuiso.policy.limits import parse_gpu_max
from tests.apply.world import World, policy
from tests.records import RecordMaker
from tests.tiers import requires

HALF = 'gpuiso: 1\ngpu.max: "50000 100000"\n'


@requires("kernel")
def test_a_share_is_handed_to_the_governor_and_taken_back(world: World, tmp_path: Path) -> None:
    registry = str(tmp_path / "registry")
    target = find_cgroup(LiveHost(), world.calls, world.name("job"), create=True)
    plan = make_plan(LiveHost(), world.calls, target, policy(HALF), registry=registry)
    assert any("have the governor hold gpu.max 50000 100000" in line for line in plan.describe())
    assert any("no governor runs" in note for note in plan.notes)
    carry_out(plan, state=world.state, calls=world.calls)
    assert registered(registry) == {world.name("job"): parse_gpu_max("50000 100000")}
    remove(find_cgroup(LiveHost(), world.calls, world.name("job")), state=world.state, calls=world.calls)
    assert registered(registry) == {}


def test_device_memory_becomes_lines_of_dmem_max(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files["/sys/fs/cgroup/dmem.capacity"] = "drm/0000:03:00.0/vram0 8514437120\n"
    wanted = policy('gpuiso: 1\ngpu.memory.max: "4G"\n')
    assert memory_as_files(maker.host(), wanted).files["dmem.max"] == ("drm/0000:03:00.0/vram0 4294967296",)


def test_device_memory_that_nothing_here_can_hold(tmp_path: Path) -> None:
    wanted = policy('gpuiso: 1\ngpu.memory.max: "4G"\n')
    with pytest.raises(NotSupported, match=r"gpu.memory.max 4294967296 is not enforceable here: it needs the dmem"):
        memory_as_files(RecordMaker(tmp_path).host(), wanted)


def test_one_governor_at_a_time(tmp_path: Path) -> None:
    lock = str(tmp_path / "run" / "lock")
    assert not governor_runs(lock)
    with only_governor(lock):
        assert governor_runs(lock)
    assert not governor_runs(lock)
