# SPDX-License-Identifier: Apache-2.0
"""NVML's list of processes, given to workloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuiso.doctor.map import build_map
from gpuiso.doctor.map.model import Stray
from tests.map.hosts import MapMaker, cell, states


@pytest.fixture
def maker(tmp_path: Path) -> MapMaker:
    return MapMaker(tmp_path / "host")


def test_memory_without_a_descriptor_shows_the_process(maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/a.service")
    maker.nvml({10: 100}, {})
    assert states(build_map(maker.host())) == {"a.service": ("use", "may")}


def test_numbers_of_a_container_are_led_back(maker: MapMaker) -> None:
    maker.container(500, "inner", gpus=[0], holds=("/dev/nvidia0",))
    status = maker.files["/proc/500/status"]
    assert status is not None
    maker.files["/proc/500/status"] = status.replace("NSpid:\t500", "NSpid:\t500\t7")
    maker.process(8, cgroup="/system.slice/other.service")
    maker.nvml({7: 100}, {})
    found = build_map(maker.host())
    assert cell(found, "inner", 0).memory == 100 << 20
    assert found.strays == ()


def test_a_process_that_is_not_here(maker: MapMaker) -> None:
    maker.container(500, "one", gpus=[0], holds=("/dev/nvidia0",))
    maker.nvml({9999: 77}, {})
    found = build_map(maker.host())
    assert found.strays == (Stray("GPU 0", 9999, 77 << 20),)
    assert cell(found, "one", 0).memory == 0


def test_memory_that_nvml_does_not_tell(maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/a.service")
    maker.nvml({10: 1}, {})
    maker.tools["nvml.json"]["gpus"][0]["processes"] = [{"pid": 10, "type": "C", "used_memory_mib": None}]
    one = cell(build_map(maker.host()), "a.service", 0)
    assert (one.memory, one.state) == (None, "use")


def test_who_computes_and_draws_is_counted_once(maker: MapMaker) -> None:
    maker.process(10, cgroup="/system.slice/a.service")
    maker.process(11, cgroup="/system.slice/a.service")
    maker.nvml({10: 100, 11: 50}, {})
    processes = maker.tools["nvml.json"]["gpus"][0]["processes"]
    processes.append({**processes[0], "type": "G"})
    assert cell(build_map(maker.host()), "a.service", 0).memory == 150 << 20
