# SPDX-License-Identifier: Apache-2.0
"""Every mode but that of NVIDIA's GPUs: management, single drivers, WSL, AMD and Intel."""

from __future__ import annotations

from typing import Any

import pytest

from gpuiso.cdi.generate import Options, generate, present_modes
from gpuiso.errors import NotFound
from tests.cdi.fake_host import FakeHost, node
from tests.cdi.nvidia_host import CAPS, char, link, nvidia_host, pci_files
from tests.cdi.parts import devices, mounts, numbers


def test_management_gets_every_node_and_may_make_them() -> None:
    host = nvidia_host(
        nodes=[
            *CAPS,
            char("/dev/nvidia-nvswitch0", 239, 0),
            char("/dev/nvidia-caps-imex-channels/channel3", 242, 3),
            node("/dev/nvidia-caps", "d"),
        ]
    )
    generated = generate(host, Options(mode="management", hooks="nvidia"))
    assert generated.spec.kind == "management.nvidia.com/gpu"
    assert set(numbers(devices(generated)["all"])) == {
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
        "/dev/nvidia-caps-imex-channels/channel3",
    }
    assert "disable-device-node-modification" not in {h.args[1] for h in generated.spec.container_edits.hooks}


def test_imex_channels_by_number() -> None:
    channels = [char(f"/dev/nvidia-caps-imex-channels/channel{n}", 242, n) for n in (10, 2)]
    generated = generate(nvidia_host(nodes=channels), Options(mode="imex"))
    assert generated.spec.kind == "nvidia.com/imex-channel"
    assert list(devices(generated)) == ["10", "2", "all"]
    with pytest.raises(NotFound, match="no IMEX channels"):
        generate(nvidia_host(), Options(mode="imex"))


@pytest.mark.parametrize(
    ("mode", "nodes", "expected"),
    [
        ("gds", ["/dev/nvidia-fs0"], ["/run/udev"]),
        ("mofed", ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"], []),
        ("gdrcopy", ["/dev/gdrdrv"], []),
        ("nvswitch", ["/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch0"], []),
    ],
)
def test_gated_modes(mode: Any, nodes: list[str], expected: list[str]) -> None:
    host = FakeHost([*(char(path, 240, n) for n, path in enumerate(nodes)), node("/run/udev", "d")])
    generated = generate(host, Options(mode=mode))
    assert generated.spec.kind == f"nvidia.com/{mode}"
    assert set(numbers(devices(generated)["all"])) == set(nodes)
    assert [mount.host_path for mount in devices(generated)["all"].mounts] == expected
    with pytest.raises(NotFound, match=f"mode {mode}: no device"):
        generate(FakeHost(), Options(mode=mode))


def test_wsl() -> None:
    store = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1"
    host = FakeHost(
        [
            char("/dev/dxg", 10, 125),
            node(f"{store}/libcuda.so.1.1"),
            node(f"{store}/nvidia-smi"),
            node("/usr/lib/wsl/drivers/other/readme"),
            node("/usr/lib/wsl/lib/libdxcore.so"),
        ]
    )
    assert present_modes(host) == ("wsl",)
    generated = generate(host, Options(hooks="nvidia"))
    assert numbers(devices(generated)["all"]) == {"/dev/dxg": "c 10:125"}
    assert set(mounts(generated)) == {f"{store}/libcuda.so.1.1", f"{store}/nvidia-smi", "/usr/lib/wsl/lib/libdxcore.so"}
    assert [hook.args[1:] for hook in generated.spec.container_edits.hooks] == [
        ("create-symlinks", "--link", f"{store}/nvidia-smi::/usr/bin/nvidia-smi"),
        ("update-ldcache", "--folder", "/usr/lib/wsl/lib", "--folder", store),
    ]


def drm_host(vendor: str, driver: str, *, kfd: bool = False) -> FakeHost:
    address = "0000:0a:00.0"
    base = f"/sys/bus/pci/devices/{address}"
    nodes = [
        link(f"{base}/driver", f"../../../bus/pci/drivers/{driver}"),
        char("/dev/dri/card0", 226, 0, 0o660, 44),
        char("/dev/dri/renderD128", 226, 128, 0o666, 44),
        link("/dev/dri/by-path/pci-0000:0a:00.0-render", "../renderD128"),
    ]
    if kfd:
        nodes.append(char("/dev/kfd", 234, 0, 0o666))
    files = pci_files(address, vendor) | {
        f"{base}/drm/card0/dev": "226:0\n",
        f"{base}/drm/renderD128/dev": "226:128\n",
        "/proc/devices": "Character devices:\n" + ("234 kfd\n" if kfd else ""),
    }
    return FakeHost(nodes, files)


def test_amd_gpus_share_kfd() -> None:
    generated = generate(drm_host("0x1002", "amdgpu", kfd=True), Options())
    assert generated.spec.kind == "amd.com/gpu"
    assert list(devices(generated)) == ["0", "all"]
    assert numbers(devices(generated)["0"]) == {"/dev/dri/card0": "c 226:0", "/dev/dri/renderD128": "c 226:128"}
    assert numbers(generated.spec.container_edits) == {"/dev/kfd": "c 234:0"}
    assert devices(generated)["0"].additional_gids == (44,)


def test_intel_gpus_bring_their_links() -> None:
    generated = generate(drm_host("0x8086", "xe"), Options(strategies=("type-index",)))
    assert generated.spec.kind == "intel.com/gpu"
    assert list(devices(generated)) == ["all", "gpu0"]
    assert [mount.host_path for mount in generated.spec.container_edits.mounts] == ["/dev/dri/by-path"]
    with pytest.raises(NotFound, match="no AMD GPU"):
        generate(drm_host("0x8086", "xe"), Options(mode="amd"))


def test_groups_stay_when_numbers_go() -> None:
    host = drm_host("0x8086", "xe")
    edits = devices(generate(host, Options(strategies=("index",), numbers=False)))["0"]
    assert [(entry.path, entry.gid, entry.file_mode) for entry in edits.device_nodes] == [
        ("/dev/dri/card0", 44, None),
        ("/dev/dri/renderD128", 44, None),
    ]
    assert edits.additional_gids == (44,)
