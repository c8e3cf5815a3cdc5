# SPDX-License-Identifier: Apache-2.0
"""Every measured row, one test a row: what the driver gave on four H200."""

from __future__ import annotations

from typing import Any

import pytest

from gpuiso.gpu.visibility import Reason, cuda_visible
from tests.gpu_visibility.values import oracle, oracle_gpus

VARIABLES = oracle("cuda_visible_devices.json")
DENIAL = oracle("device_denial.json")
NODES = {
    "none": (),
    "nvidia0": ("/dev/nvidia0",),
    "nvidia1": ("/dev/nvidia1",),
    "nvidia1+2": ("/dev/nvidia1", "/dev/nvidia2"),
    "all gpus, ctl ok": ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"),
    "nvidiactl": ("/dev/nvidiactl",),
    "uvm": ("/dev/nvidia-uvm",),
    "uvm-tools": ("/dev/nvidia-uvm-tools",),
    "uvm major": ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    "caps": ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"),
    "major 195": ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3", "/dev/nvidiactl"),
}


def environment(case: dict[str, Any]) -> dict[str, str]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return {name: case[name] for name in names if case.get(name) is not None}


def name_of(case: dict[str, Any]) -> str:
    return f"{case.get('denied_nodes', '')} {environment(case)}".strip()


@pytest.mark.parametrize("case", VARIABLES["cases"], ids=name_of)
def test_variables(case: dict[str, Any]) -> None:
    seen = cuda_visible(oracle_gpus(VARIABLES), environment(case), driver_version=VARIABLES["driver"])
    assert (seen.cuInit, [gpu.physical for gpu in seen.gpus]) == (case["cuInit"], case["visible"])
    assert [gpu.uuid for gpu in seen.gpus] == [VARIABLES["uuids"][n] for n in case["visible"]]
    assert [gpu.index for gpu in seen.gpus] == list(range(len(case["visible"])))


@pytest.mark.parametrize("case", DENIAL["cases"], ids=name_of)
def test_denial(case: dict[str, Any]) -> None:
    seen = cuda_visible(oracle_gpus(DENIAL), environment(case), denied=NODES[case["denied_nodes"]])
    assert (seen.cuInit, [gpu.physical for gpu in seen.gpus]) == (case["cuInit"], case["visible_physical"])


@pytest.mark.parametrize("case", VARIABLES["cases"], ids=name_of)
def test_each_token_took_effect_or_is_explained(case: dict[str, Any]) -> None:
    value = case["CUDA_VISIBLE_DEVICES"]
    seen = cuda_visible(oracle_gpus(VARIABLES), environment(case))
    assert [token.text for token in seen.tokens] == ([] if value is None else value.split(","))
    assert [token.position for token in seen.tokens] == list(range(len(seen.tokens)))
    if case["CUDA_DEVICE_ORDER"] in (None, "", "PCI_BUS_ID", "FASTEST_FIRST") and value is not None:
        assert [token.physical for token in seen.tokens if token.reason is None] == case["visible"]
    for token in seen.tokens:
        assert (token.reason is None) == (token.why is None)
        if token.reason is Reason.AFTER_END:
            assert any(earlier.ends for earlier in seen.tokens[: token.position])


def test_both_tables_are_whole() -> None:
    assert (len(VARIABLES["cases"]), len(DENIAL["cases"])) == (83, 25)
    assert {case["denied_nodes"] for case in DENIAL["cases"]} <= set(NODES)
