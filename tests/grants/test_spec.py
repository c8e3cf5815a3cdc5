# SPDX-License-Identifier: Apache-2.0
"""What --gpus asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.errors import GpuisoError, NotFound, UsageError
from gpuiso.gpu.inventory import build_inventory
from gpuiso.grants.spec import parse_request
from gpuiso.grants.units import Unit, overlap, units_of
from gpuiso.host import open_host
from tests.launch.parts import gpus, mig_gpu
from tests.support import REPOSITORY

UNITS = (*gpus(3), *mig_gpu(3, "1g.18gb", "1g.18gb", "3g.71gb"))
AMD = Unit("amd:0000:41:00.0", "amd:0000:41:00.0", "amd", 0, "0000:41:00.0")


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("2", (("GPU-0", "GPU-1", "GPU-2"),) * 2),
        ("0,2", (("GPU-0",), ("GPU-2",))),
        ("1,", (("GPU-1",),)),
        ("nvidia:1", (("GPU-1",),)),
        ("amd:0", (("amd:0000:41:00.0",),)),
        ("0000:41:00.0", (("amd:0000:41:00.0",),)),
        ("41:00.0", (("amd:0000:41:00.0",),)),
        ("GPU-2", (("GPU-2",),)),
        ("mig:1g.18gb", (("MIG-3-0", "MIG-3-1"),)),
        ("mig:1g.18gb,mig:1g.18gb", (("MIG-3-0", "MIG-3-1"),) * 2),
        ("MIG-3-2, 0", (("MIG-3-2",), ("GPU-0",))),
        ("none", ()),
    ],
)
def test_what_is_asked_for(text: str, slots: tuple[tuple[str, ...], ...]) -> None:
    assert parse_request(text, (*UNITS, AMD)).slots == slots


def test_all_is_every_gpu_and_mig_device() -> None:
    assert parse_request("all", UNITS).wanted == {unit.id for unit in UNITS}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("0", UsageError, "two ways"),
        ("4", NotFound, "this host has 3"),
        ("7,", NotFound, "there is no GPU 7"),
        ("0,0", UsageError, "named twice"),
        ("GPU-", UsageError, "names no GPU"),
        ("GPU-9", NotFound, "there is no GPU GPU-9"),
        ("MIG-3", UsageError, "names 3 GPUs"),
        ("mig:7g.141gb", NotFound, "there is no GPU mig:7g.141gb"),
        ("mig:3g.71gb,mig:3g.71gb", NotFound, "more than this host has"),
        ("-1", UsageError, "names no GPU"),
        ("two", UsageError, "names no GPU"),
        (",", UsageError, "names no GPU"),
        ("", UsageError, "names no GPU"),
        ("9" * 40, NotFound, "this host has 3"),
    ],
)
def test_what_cannot_be_asked_for(text: str, kind: type[GpuisoError], words: str) -> None:
    with pytest.raises(kind, match=words):
        parse_request(text, UNITS)


@given(st.text(alphabet="0123456789,:.-GPUMIGnvidiaamdallnone ", max_size=30))
def test_any_text_is_a_request_or_one_sentence(text: str) -> None:
    try:
        request = parse_request(text, UNITS)
    except (UsageError, NotFound):
        return
    assert request.assign(request.wanted) is not None


def test_a_name_inside_a_profile_is_served_first() -> None:
    request = parse_request("mig:1g.18gb,MIG-3-0", UNITS)
    assert request.assign({"MIG-3-0", "MIG-3-1"}) == ("MIG-3-1", "MIG-3-0")
    assert request.assign({"MIG-3-1"}) is None


def test_a_gpu_and_its_mig_devices_overlap() -> None:
    assert overlap(("GPU-3", "GPU-3"), [("MIG-3-0", "GPU-3")])
    assert overlap(("MIG-3-0", "GPU-3"), [("GPU-3", "GPU-3")])
    assert not overlap(("MIG-3-0", "GPU-3"), [("MIG-3-1", "GPU-3"), ("GPU-0", "GPU-0")])


def test_units_of_a_recorded_host() -> None:
    units = units_of(build_inventory(open_host(str(REPOSITORY / "examples/hosts/h200-x4"))))
    assert [(unit.index, unit.whole, unit.nodes) for unit in units] == [
        (n, True, ((f"/dev/nvidia{n}", 195, n),)) for n in range(4)
    ]
    assert units[0].subject == "gpu GPU-98b0e715-3bf7-c370-6d85-c524e4400665"
