# SPDX-License-Identifier: Apache-2.0
"""Numbers of the host where a process sees only some of its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.errors import Unknown
from tests.doctor.job import Job, alarms
from tests.records import UUIDS

CVD = "CUDA_VISIBLE_DEVICES"
THIRD = "GPU-33333333-3333-3333-3333-333333333333"
CONTROL = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (238, 0)}


def job(directory: Path, env: dict[str, str], *minors: int) -> Job:
    """A container with these of the host's three GPUs."""
    made = Job(directory)
    made.add_gpu(2, 2, THIRD)
    made.add(4242, env, own_dev={**{f"/dev/nvidia{minor}": (195, minor) for minor in minors}, **CONTROL})
    return made


@pytest.mark.parametrize(
    ("env", "minors", "expected"),
    [
        ({CVD: "1"}, (1,), "error"),  # it is 0 here, and 1 is none
        ({CVD: "1,2"}, (1, 2), "error"),  # 1 is GPU 2 here, and 2 is none
        ({CVD: "1", "NVIDIA_VISIBLE_DEVICES": "1"}, (0, 2), "error"),
        ({CVD: "1", "SLURM_STEP_GPUS": "1"}, (1, 2), "error"),
    ],
)
def test_numbers_of_the_host(tmp_path: Path, env: dict[str, str], minors: tuple[int, ...], expected: str) -> None:
    assert alarms(job(tmp_path, env, *minors).rules("GPU-CVD-")) == {"GPU-CVD-REINDEX": expected}


@pytest.mark.parametrize(
    ("env", "minors"),
    [
        ({CVD: "0"}, (2,)),
        ({CVD: "0"}, (1, 2)),  # a container counts its own from 0
        ({CVD: "1"}, (1, 2)),
        ({CVD: "0,1", "NVIDIA_VISIBLE_DEVICES": "1,2"}, (1, 2)),
        ({CVD: "0", "SLURM_JOB_GPUS": "2"}, (2,)),
        ({CVD: "1"}, (0, 1)),  # the same number here and on the host
        ({CVD: THIRD}, (2,)),
        ({}, (2,)),
    ],
)
def test_silent_where_numbers_are_right(tmp_path: Path, env: dict[str, str], minors: tuple[int, ...]) -> None:
    assert alarms(job(tmp_path, env, *minors).rules("GPU-CVD-")) == {}


def test_says_which_gpu_the_number_names_now(tmp_path: Path) -> None:
    made = job(tmp_path, {CVD: "1", "SLURM_STEP_GPUS": "1"}, 1, 2)
    (finding,) = (f for f in made.findings() if f.rule.id == "GPU-CVD-REINDEX")
    assert f"GPU 1 ({UUIDS[1]}) on the host and GPU 2 ({THIRD}) here" in finding.cause
    assert finding.fix[0].command == f"export {CVD}={UUIDS[1]}"


def test_a_number_beyond_the_host_is_out_of_range(tmp_path: Path) -> None:
    assert alarms(job(tmp_path, {CVD: "7"}, 1, 2).rules("GPU-CVD-")) == {"GPU-CVD-OOR": "error"}


def test_silent_where_no_gpu_can_be_opened_at_all(tmp_path: Path) -> None:
    assert job(tmp_path, {CVD: "0"}).rules("GPU-CVD-") == {}


def filtered(directory: Path, value: str, *, asked: bool, parent: bool = False) -> dict[str, str]:
    """The node of GPU 0 is there, but only root may open it."""
    made = Job(directory)
    made.add_gpu(2, 2, THIRD)
    made.add(4242, {CVD: value}, uid=1000, ppid=4000 if parent else 1)
    if parent:
        made.add(4000, {CVD: value}, comm="bash")
    made.nodes["/proc/4242/root/dev/nvidia0"]["mode"] = "0600"
    return made.rules("GPU-CVD-", asked=asked)


def test_a_denied_node_that_is_in_view_makes_numbers_doubtful(tmp_path: Path) -> None:
    assert filtered(tmp_path / "a", "0", asked=False) == {"GPU-CVD-REINDEX": "warning"}
    assert filtered(tmp_path / "b", "0", asked=True, parent=True) == {"GPU-CVD-REINDEX": "error"}
    assert filtered(tmp_path / "c", "0,1", asked=False) == {}, "all that is left, as if unset"
    assert filtered(tmp_path / "d", "0,1", asked=True) == {"GPU-CVD-REINDEX": "warning"}
    assert filtered(tmp_path / "e", UUIDS[0], asked=True) == {"GPU-CVD-DENIED": "error"}


def test_unknown_access_is_not_examined(tmp_path: Path) -> None:
    from gpuiso.doctor.checks.cuda_reindex import reindexed
    from gpuiso.doctor.machine import Machine, Subject

    made = Job(tmp_path, {CVD: "0"})
    made.files["/proc/4242/mountinfo"] = None
    subject = Subject(Machine(made.host()), 4242, asked=True)
    with pytest.raises(Unknown):
        list(reindexed(subject))
