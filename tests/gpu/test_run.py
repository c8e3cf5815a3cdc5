# SPDX-License-Identifier: Apache-2.0
"""``gpuiso run`` on real GPUs: who is started at once lands apart, sees one GPU, and keeps to its share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuiso.gpu.model import Inventory
from tests.gpu.place import CU_INIT
from tests.support import REPOSITORY
from tests.tiers import requires

pytestmark = requires("gpu")

GPUISO = [sys.executable, "-m", "gpuiso"]
SECONDS = 20.0
HELD_OPEN = f"{CU_INIT}\nimport sys; sys.stdout.flush(); sys.stdin.read()"
"""Says what CUDA sees, keeps CUDA open, and ends when its input does."""
OTHERS = """
import errno, os, stat, sys
for node in sys.argv[1:]:
    device = os.stat(node).st_rdev
    made = f"/var/tmp/node-{device}"
    for attempt in (lambda: os.open(node, os.O_RDWR), lambda: os.mknod(made, stat.S_IFCHR, device)):
        try:
            attempt()
        except OSError as error:
            print(errno.errorcode[error.errno])
        else:
            print("0")
"""


@contextmanager
def launched(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*GPUISO, "run", *arguments], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def first_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def gpuiso(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GPUISO, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )


def leases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gpuiso("leases", "--json").stdout)["leases"]
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    assert leases() == []
    yield
    for _ in range(50):
        if leases() == []:
            return
        time.sleep(0.1)
    pytest.fail("a lease outlived its program")


def program(code: str, *arguments: str) -> Sequence[str]:
    return ["--", sys.executable, "-I", "-S", "-c", code, *arguments]


def test_two_at_once_land_apart(two_gpus: Inventory, record_property: Callable[[str, object], None]) -> None:
    with (
        launched("--gpus", "1", *program(HELD_OPEN)) as one,
        launched("--gpus", "1", *program(HELD_OPEN)) as other,
    ):
        seen = [first_line(one), first_line(other)]
        assert [found["cuInit"] for found in seen] == [0, 0]
        uuids = [found["uuids"] for found in seen]
        assert [len(found) for found in uuids] == [1, 1]
        assert uuids[0] != uuids[1]
        record_property("note", " and ".join(found[0] for found in uuids))
        listed = sorted(entry["gpus"][0]["id"] for entry in leases())
        assert listed == sorted(found[0] for found in uuids)
        if len(two_gpus.of("nvidia")) == 2:
            assert gpuiso("run", "--gpus", "1", "--", "true").returncode == 4


def test_the_other_gpu_cannot_be_opened(two_gpus: Inventory) -> None:
    gpus = two_gpus.of("nvidia")
    others = [gpu.node.path for gpu in gpus[1:] if gpu.node is not None]
    done = gpuiso("run", "--gpus", "nvidia:0", *program(OTHERS, *others))
    assert done.stdout.split() == ["EPERM"] * 2 * len(others), done.stderr


def test_nvidia_smi_lists_one(two_gpus: Inventory) -> None:
    done = gpuiso("run", "--gpus", "nvidia:1", "--", "nvidia-smi", "-L")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1
    assert str(two_gpus.of("nvidia")[1].uuid) in lines[0]


def test_a_private_dev_computes(inventory: Inventory) -> None:
    done = gpuiso("run", "--gpus", "1", "--private-dev", *program(CU_INIT))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"cuInit": 0, "uuids": [inventory.of("nvidia")[0].uuid]}


def test_a_gpu_in_use_without_a_lease_is_avoided(two_gpus: Inventory) -> None:
    first = str(two_gpus.of("nvidia")[0].uuid)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": first}
    context = CU_INIT + (
        "c = ctypes.c_void_p(); assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == 0\n"
        "import sys; sys.stdout.flush(); sys.stdin.read()"
    )
    stranger = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", context],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first_line(stranger)
        time.sleep(1)
        done = gpuiso("run", "--gpus", "1", *program(CU_INIT))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["uuids"] != [first]
        refused = gpuiso("run", "--gpus", first, "--", "true")
        assert refused.returncode == 4
        assert "which has no lease" in refused.stderr
        assert gpuiso("run", "--gpus", first, "--share", "--", "true").returncode == 0
    finally:
        stranger.communicate()


def test_a_share_is_held(inventory: Inventory, record_property: Callable[[str, object], None]) -> None:
    matmul = str(Path(__file__).with_name("matmul.py"))
    command = ["--gpus", "1", "--gpu-max", "50000/100000", "--", sys.executable, "-u", matmul, "8192"]
    with launched(*command) as process:
        assert process.stdout is not None
        rows = [tuple(map(float, process.stdout.readline().split()))]
        while rows[-1][0] < rows[0][0] + SECONDS:
            rows.append(tuple(map(float, process.stdout.readline().split())))
    settled = [row for row in rows if row[0] > rows[0][0] + 4]
    share = (settled[-1][1] - settled[0][1]) / (settled[-1][0] - settled[0][0])
    record_property("note", f"{share:.3f} of 0.5")
    assert share == pytest.approx(0.5, abs=0.04)
