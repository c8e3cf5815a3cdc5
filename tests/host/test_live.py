# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuiso.errors import Unknown
from gpuiso.host.live import LiveHost
from gpuiso.host.nvml import NvmlChild


def test_the_machine() -> None:
    host = LiveHost()
    assert host.live
    assert host.kernel == os.uname().release
    assert host.cgroup_mode in ("unified", "hybrid", "legacy")
    assert os.getpid() in host.pids()
    assert "Character devices:" in (host.text("/proc/devices") or "")
    assert host.text("/nonexistent") is None
    assert host.command(("no-such-program",)) is None


def fake_nvml_child(tmp_path: Path, code: str) -> NvmlChild:
    program = tmp_path / "child.py"
    program.write_text(code)
    return NvmlChild(str(program))


def test_nvml_that_never_answers_is_unknown_and_stays_so(tmp_path: Path) -> None:
    child = fake_nvml_child(tmp_path, "import time; time.sleep(60)")
    for _ in range(2):
        with pytest.raises(Unknown, match=r"no answer within 0\.2 s"):
            child.answer(0.2)


def test_nvml_that_crashes_is_unknown(tmp_path: Path) -> None:
    child = fake_nvml_child(tmp_path, "import os; os.kill(os.getpid(), 11)")
    with pytest.raises(Unknown, match=r"its reader failed \(exit -11\)"):
        child.answer(10)


@pytest.mark.parametrize(
    ("printed", "says"), [('{"error": "Driver/library version mismatch"}', "mismatch"), ("[", "failed")]
)
def test_nvml_that_fails_is_unknown(tmp_path: Path, printed: str, says: str) -> None:
    child = fake_nvml_child(tmp_path, f"print({printed!r})")
    with pytest.raises(Unknown, match=says):
        child.answer(10)


def test_no_nvml_library_is_absence(tmp_path: Path) -> None:
    child = fake_nvml_child(tmp_path, 'print(\'{"error": "library not found"}\')')
    assert child.answer(10) is None


def test_the_real_child_where_there_is_no_library() -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has NVML")
    assert NvmlChild().answer(30) is None
