# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.errors import BadInput
from gpuiso.govern.registry import register, registered, unregister
from gpuiso.policy.limits import parse_gpu_max


def test_a_round_trip(tmp_path: Path) -> None:
    directory = str(tmp_path / "registry")
    assert registered(directory) == {}
    register("/a", parse_gpu_max("50000"), directory)
    register("/b", parse_gpu_max("max"), directory)
    register("/a", parse_gpu_max("70000 100000"), directory)
    assert registered(directory) == {"/a": parse_gpu_max("70000"), "/b": parse_gpu_max("max")}
    assert unregister("/a", directory)
    assert not unregister("/a", directory)
    assert list(registered(directory)) == ["/b"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"cgroup": "/a"}', '{"cgroup": "/a", "gpu.max": "lots"}'])
def test_a_damaged_entry_names_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BadInput, match=r"x\.json"):
        registered(str(tmp_path))
