# SPDX-License-Identifier: Apache-2.0
"""Each gate is asked once for all processes that it treats alike, so that a large host takes time in proportion."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpuiso.doctor.gates import explain
from gpuiso.doctor.map import access, build_map
from gpuiso.doctor.map.access import Access
from gpuiso.doctor.map.members import read_members
from tests.map.hosts import MapMaker


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the place and the filters were looked at."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        original = getattr(access, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(access, name, counting)

    count("explain")
    count("cgroup_gates")
    return counted


def test_processes_of_one_unit(tmp_path: Path, asked: Counter[str]) -> None:
    maker = MapMaker(tmp_path)
    for pid in range(100, 150):
        maker.process(pid, {"CUDA_VISIBLE_DEVICES": "0"}, cgroup="/system.slice/a.service")
    assert len(build_map(maker.host()).workloads) == 1
    assert asked == {"explain": 4, "cgroup_gates": 4}


def test_services_with_equal_filters(tmp_path: Path, asked: Counter[str]) -> None:
    maker = MapMaker(tmp_path)
    for pid in range(100, 150):
        unit = f"/system.slice/{pid}.service"
        maker.process(pid, {"CUDA_VISIBLE_DEVICES": "0"}, cgroup=unit)
        maker.cgroups[unit] = {"device_programs": [maker.program([pid % 2], number=pid)]}
    found = build_map(maker.host())
    assert len(found.workloads) == 50
    assert asked == {"explain": 4, "cgroup_gates": 8}
    for workload in found.workloads:
        denied = next(cell.gate for cell in workload.cells if cell.may_open == "deny")
        assert denied is not None
        assert denied.where == workload.cgroup, "an answer is told in terms of each workload's own cgroups"


@pytest.mark.parametrize("name", ["shared", "alone"])
def test_the_answers_are_those_of_the_gates(tmp_path: Path, name: str) -> None:
    """Asked one by one, explain says the same of every process and node."""
    maker = MapMaker(tmp_path, gpus=3)
    maker.container(10, "one", gpus=[0, 1], allowed=[0])
    maker.container(11, "two", gpus=[0, 1], allowed=[])
    maker.process(20, cgroup="/system.slice/a.service", uid=1000)
    maker.process(21, cgroup="/system.slice/b.service")
    maker.process(22, cgroup="/system.slice/c.service", uid=1000)
    maker.cgroups["/system.slice/b.service"] = {"device_programs": [maker.program([2])]}
    maker.cgroups["/system.slice/c.service"] = {"device_programs": None}
    for pid in (20, 21, 22):
        maker.add_node(f"/proc/{pid}/root/dev/nvidia1", 195, 1, "0600")  # one mount namespace, one mode
    if name == "alone":
        for pid in (10, 11, 20, 21, 22):
            del maker.nodes[f"/proc/{pid}/ns/mnt"]
    host = maker.host()
    asking = Access(host)
    members, _ = read_members(host)
    nodes = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    seen = set()
    for member in members:
        for node in nodes:
            expected = explain(host, member.pid, node)
            got = asking.ask(member, node)
            assert got.verdict == expected.verdict, (member.pid, node)
            if expected.denied_by is not None:
                assert got.gate is not None
                assert (got.gate.gate, got.gate.where) == (expected.denied_by.gate, expected.denied_by.where)
            seen.add(got.verdict)
    assert seen == {"allow", "deny", "unknown"}
