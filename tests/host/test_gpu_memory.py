# SPDX-License-Identifier: Apache-2.0
"""The reader of GPU memory, with programs in NVML's place that answer, fail and hang."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpuiso.errors import Unknown
from gpuiso.host.gpu_memory import GpuMemory, GpuMemoryReader
from gpuiso.host.gpu_memory_child import snapshot

ANSWERS = """
import sys
for number, _ in enumerate(sys.stdin):
    print('{"gpus": [{"uuid": "GPU-1", "total": 100, ', end="")
    print('"used": %d, "processes": [[7, %d], [8, null]]}]}' % (number, number), flush=True)
"""


def reader(directory: Path, program: str) -> GpuMemoryReader:
    path = directory / "child.py"
    path.write_text(program)
    return GpuMemoryReader(str(path))


def test_each_answer_is_of_its_moment(tmp_path: Path) -> None:
    with reader(tmp_path, ANSWERS) as memory:
        assert [memory.read() for _ in range(2)] == [
            (GpuMemory("GPU-1", 100, 0, {7: 0, 8: None}),),
            (GpuMemory("GPU-1", 100, 1, {7: 1, 8: None}),),
        ]


def test_a_late_answer_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    late = ANSWERS.replace("    print(", "    import time; time.sleep(0 if number else 0.5)\n    print(", 1)
    with reader(tmp_path, late) as memory:
        with pytest.raises(Unknown, match=r"no answer within 0\.05 s"):
            memory.read(0.05)
        (gpu,) = memory.read(10)
    assert gpu.used == 1


def test_a_driver_that_hangs(tmp_path: Path) -> None:
    started = time.monotonic()
    with reader(tmp_path, "import time; time.sleep(60)") as memory, pytest.raises(Unknown, match="may hang"):
        memory.read(0.1)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ('print(\'{"error": "Driver/library version mismatch"}\')', "version mismatch"),
        ("raise SystemExit(1)", "its reader ended"),
    ],
)
def test_nvml_fails(tmp_path: Path, program: str, says: str) -> None:
    with reader(tmp_path, program) as memory, pytest.raises(Unknown, match=says):
        memory.read()


def test_closed(tmp_path: Path) -> None:
    memory = reader(tmp_path, ANSWERS)
    memory.close()
    with pytest.raises(Unknown, match="was closed"):
        memory.read()


class Nvml:
    """A library with one GPU that answers, and one that fell off the bus."""

    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_NO_PERMISSION = 4

    class NVMLError(Exception):
        value = 15

    class Thing:
        def __init__(self, **fields: Any) -> None:
            self.__dict__.update(fields)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 (NVML's own name)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return self.Thing(total=10, used=4)

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return "GPU-1"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [self.Thing(pid=7, usedGpuMemory=3), self.Thing(pid=5, usedGpuMemory=None)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        raise self.NVMLError


def test_a_snapshot() -> None:
    assert snapshot(Nvml()) == {"gpus": [{"uuid": "GPU-1", "total": 10, "used": 4, "processes": [(5, None), (7, 3)]}]}
