# SPDX-License-Identifier: Apache-2.0
"""What must hold for any text in the variables and any host."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gpuiso.gpu.model import Gpu, MigDevice
from gpuiso.gpu.visibility import Reason, Visibility, cuda_visible
from gpuiso.gpu.visibility.level_zero import level_zero_visible
from gpuiso.gpu.visibility.nvidia import driver_capabilities, nvidia_visible
from gpuiso.gpu.visibility.rocm import rocm_visible
from tests.gpu_visibility.values import gpu, mig

UUIDS = (
    "GPU-98b0e715-3bf7-c370-6d85-c524e4400665",
    "GPU-98b0e715-0000-c370-6d85-c524e4400665",
    "GPU-f80bc0db",
)
PIECES = st.one_of(
    st.sampled_from(
        ["", "0", "1", "2", " 1", "+1", "01", "-1", "-0", "4294967296", "0x1", "1x", "all", "GPU-", "MIG-",
         "GPU-98", "GPU-98b0e715-3", "MIG-1", f"MIG-{UUIDS[0]}/1/0", "0.0", "0:1", *UUIDS]
    ),
    st.integers(-3, 2**70).map(str),
    st.text(max_size=12),
)  # fmt: skip
VALUES = st.one_of(st.text(), st.lists(PIECES, max_size=6).map(",".join))
DENIED = st.sets(
    st.sampled_from(
        [
            "/dev/nvidia0",
            "nvidia1",
            "/dev/nvidia2",
            "nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-caps/nvidia-cap3",
        ]
    )
)
VERSIONS = st.one_of(st.none(), st.sampled_from(["450.1", "525.60.13", "580.159.04"]), st.text(max_size=5))


@st.composite
def hosts(draw: st.DrawFn) -> list[Gpu]:
    gpus = []
    for index in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            gpus.append(gpu(index, UUIDS[index], name=draw(st.sampled_from(["T4", "H200", None]))))
        else:
            parts: tuple[MigDevice, ...] = (
                mig(1, 0, f"MIG-{index}1", cap=3),
                mig(1, 1, f"MIG-{index}2"),
                mig(2, 0, f"MIG-{index}3"),
            )
            parts = parts[: draw(st.integers(0, 3))]
            gpus.append(gpu(index, UUIDS[index], mig_enabled=True, mig_devices=parts))
    return gpus


def check(seen: Visibility, value: str | None) -> None:
    shown = [(entry.physical, entry.mig, entry.tiles) for entry in seen.gpus]
    assert len(set(shown)) == len(shown)
    assert [entry.index for entry in seen.gpus] == list(range(len(shown)))
    assert (seen.cuInit == 0) == bool(shown)
    assert [token.text for token in seen.tokens] == ([] if value is None else value.split(","))
    assert len(seen.ignored) == sum(token.reason is not None for token in seen.tokens)
    assert all(why and "\n" not in why for _, why in seen.ignored)
    ended = [token.position for token in seen.tokens if token.ends]
    assert len(ended) <= 1
    for position in ended:
        assert {token.reason for token in seen.tokens[position + 1 :]} <= {Reason.AFTER_END}


@given(hosts(), st.one_of(st.none(), VALUES), DENIED, VERSIONS, st.one_of(st.none(), st.text(max_size=4)))
def test_cuda(host: list[Gpu], value: str | None, denied: set[str], version: str | None, order: str | None) -> None:
    env: Mapping[str, str] = {
        name: text for name, text in (("CUDA_VISIBLE_DEVICES", value), ("CUDA_DEVICE_ORDER", order)) if text is not None
    }
    seen = cuda_visible(host, env, denied=denied, driver_version=version)
    check(seen, value)
    assert seen.cuInit in (0, 100, 101, 999)
    closed = {f"/dev/{name.removeprefix('/dev/')}" for name in denied}
    assert closed.isdisjoint({entry.node for entry in seen.gpus})
    if seen.cuInit == 0 and value is not None:
        assert [t.physical for t in seen.tokens if t.reason is None] == [entry.physical for entry in seen.gpus]


@given(hosts(), VALUES)
def test_denying_more_never_shows_more(host: list[Gpu], value: str) -> None:
    whole = cuda_visible(host, {})
    part = cuda_visible(host, {"CUDA_VISIBLE_DEVICES": value})
    assert {entry.physical for entry in part.gpus} <= {entry.physical for entry in whole.gpus}
    for entry in whole.gpus:
        rest = cuda_visible(host, {}, denied=[entry.node or ""])
        assert {e.physical for e in rest.gpus} == {e.physical for e in whole.gpus} - {entry.physical}


@given(st.integers(0, 3), st.dictionaries(st.sampled_from(["ROCR", "HIP", "CUDA"]), VALUES), st.booleans())
def test_rocm(count: int, values: dict[str, str], deny: bool) -> None:
    gpus = [gpu(n, uuid, vendor="amd") for n, uuid in enumerate(UUIDS[:count])]
    env = {f"{name}_VISIBLE_DEVICES": value for name, value in values.items()}
    seen = rocm_visible(gpus, env, denied=["dri/renderD128"] if deny else [])
    shown = [entry.physical for entry in seen.gpus]
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(range(1 if deny else 0, count))
    assert (seen.cuInit == 0) == bool(shown)
    assert rocm_visible(gpus, {**env, "GPU_DEVICE_ORDINAL": "0"}, api="opencl").api == "opencl"


@given(
    st.integers(0, 3),
    VALUES,
    st.sampled_from(["", "FLAT", "COMPOSITE", "COMBINED", "x"]),
    st.one_of(st.none(), st.dictionaries(st.integers(0, 3), st.integers(-1, 3))),
)
def test_level_zero(count: int, mask: str, hierarchy: str, tiles: dict[int, int] | None) -> None:
    gpus = [gpu(n, vendor="intel") for n in range(count)]
    env = {"ZE_AFFINITY_MASK": mask, "ZE_FLAT_DEVICE_HIERARCHY": hierarchy}
    seen = level_zero_visible(gpus, env, tiles=tiles)
    shown = [(entry.physical, entry.tiles) for entry in seen.gpus]
    assert len(set(shown)) == len(shown)
    assert shown == sorted(shown)
    assert (seen.cuInit == 0) == bool(shown)


@given(hosts(), VALUES, VALUES)
def test_nvidia(host: list[Gpu], value: str, capabilities: str) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": value, "NVIDIA_DRIVER_CAPABILITIES": capabilities}
    got = nvidia_visible(host, env)
    shown = [(entry.physical, entry.mig) for entry in got.gpus]
    assert len(set(shown)) == len(shown)
    assert {entry.uuid for entry in got.gpus} <= {entry.uuid for entry in host}
    assert not (got.fails and shown)
    assert driver_capabilities(env).granted == got.capabilities.granted
