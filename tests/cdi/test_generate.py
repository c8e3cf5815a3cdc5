# SPDX-License-Identifier: Apache-2.0
"""Specs of made-up hosts with NVIDIA GPUs: MIG, DRM nodes, missing and stale nodes, libraries, other roots."""

from __future__ import annotations

from typing import Any

import pytest

from gpuiso.cdi.generate import Options, generate
from gpuiso.cdi.spec import DeviceNode
from gpuiso.errors import BadInput, NotFound, NotSupported, Unknown
from gpuiso.hook.arguments import container_work
from tests.cdi.fake_host import FakeHost, node
from tests.cdi.nvidia_host import CAPS, DEVICES, LIB, VERSION, char, ldcache, link, nvidia_host, uuid
from tests.cdi.parts import devices, mounts, numbers


def test_gpus_by_every_strategy_and_all_without_nvml() -> None:
    generated = generate(nvidia_host(), Options(strategies=("index", "uuid", "type-index")))
    assert list(devices(generated)) == ["0", "1", uuid(0), uuid(1), "all", "gpu0", "gpu1"]
    assert numbers(devices(generated)["gpu1"]) == {"/dev/nvidia1": "c 195:1"}
    assert numbers(devices(generated)["all"]) == {"/dev/nvidia0": "c 195:0", "/dev/nvidia1": "c 195:1"}
    assert generated.spec.version == "0.5.0"
    assert generated.messages == ()


def test_type_index_names_need_a_lower_version_and_all_can_be_left_out() -> None:
    spec = generate(nvidia_host(), Options(strategies=("type-index",), all_device=False)).spec
    assert (spec.version, [device.name for device in spec.devices]) == ("0.3.0", ["gpu0", "gpu1"])


def test_drm_nodes_bring_their_groups_and_links() -> None:
    card = "/sys/bus/pci/devices/0000:00:00.0/drm"
    host = nvidia_host(
        1,
        nodes=[
            char("/dev/dri/card1", 226, 1, 0o660, 44),
            char("/dev/dri/renderD128", 226, 128, 0o660, 993),
            link("/dev/dri/by-path/pci-0000:00:00.0-card", "../card1"),
            link("/dev/dri/by-path/pci-0000:09:00.0-card", "../card7"),
        ],
        files={f"{card}/card1/dev": "226:1\n", f"{card}/renderD128/dev": "226:128\n"},
    )
    generated = generate(host, Options(strategies=("index",), hooks="nvidia"))
    edits = devices(generated)["0"]
    assert [(entry.path, entry.gid, entry.file_mode) for entry in edits.device_nodes] == [
        ("/dev/nvidia0", None, 0o666),
        ("/dev/dri/card1", 44, 0o660),
        ("/dev/dri/renderD128", 993, 0o660),
    ]
    assert edits.additional_gids == (44, 993)
    assert [hook.args[1:] for hook in edits.hooks] == [
        ("create-symlinks", "--link", "../card1::/dev/dri/by-path/pci-0000:00:00.0-card")
    ]
    assert generated.spec.version == "0.7.0"
    assert devices(generated)["all"] == edits
    old = generate(host, Options(additional_gids=False)).spec
    assert old.version == "0.5.0"


def mig_host(**given: Any) -> FakeHost:
    base = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    mig = [{"uuid": "MIG-1", "gpu_instance": 1, "compute_instance": 0, "profile": "1g.18gb"}]
    gpu = {"pci_bus_id": "00000000:00:00.0", "minor": 0, "uuid": uuid(0), "mig_mode": "Enabled", "mig_devices": mig}
    return nvidia_host(
        2,
        files={f"{base}/access": "DeviceFileMinor: 12\n", f"{base}/ci0/access": "DeviceFileMinor: 13\n"},
        nvml=given.pop("nvml", {"gpus": [gpu]}),
        **given,
    )


def test_mig_devices_take_the_place_of_their_gpu() -> None:
    generated = generate(mig_host(nodes=CAPS), Options(strategies=("index", "uuid", "type-index")))
    assert list(devices(generated)) == ["0:0", "1", uuid(1), "MIG-1", "all", "gpu1", "mig0:0"]
    assert numbers(devices(generated)["0:0"]) == {
        "/dev/nvidia0": "c 195:0",
        "/dev/nvidia-caps/nvidia-cap12": "c 511:12",
        "/dev/nvidia-caps/nvidia-cap13": "c 511:13",
    }
    assert devices(generated)["MIG-1"] == devices(generated)["mig0:0"] == devices(generated)["0:0"]
    assert generated.messages == ()


def test_mig_devices_are_found_without_nvml_but_have_no_uuid() -> None:
    host = mig_host(nodes=CAPS, nvml=None)
    generated = generate(host, Options())
    assert "0:0" in devices(generated)
    assert generated.messages == ("MIG device 0:0 gets no UUID name: NVML did not tell it",)


def test_a_mig_device_without_its_capabilities_is_left_out_by_name() -> None:
    mig = [{"uuid": "MIG-1", "gpu_instance": 1, "compute_instance": 0, "profile": "1g.18gb"}]
    gpu = {"pci_bus_id": "00000000:00:00.0", "minor": 0, "uuid": uuid(0), "mig_mode": "Enabled", "mig_devices": mig}
    generated = generate(nvidia_host(2, nvml={"gpus": [gpu]}), Options())
    assert "0:0" not in devices(generated)
    assert any("lacks a capability node" in message for message in generated.messages)


def test_only_graphics_profiles_bring_drm_nodes() -> None:
    drm = "/sys/bus/pci/devices/0000:00:00.0/drm/renderD128/dev"
    base = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    files = {
        drm: "226:128\n",
        f"{base}/access": "DeviceFileMinor: 12\n",
        f"{base}/ci0/access": "DeviceFileMinor: 13\n",
    }
    for profile, there in (("1g.18gb", False), ("1g.18gb+gfx", True)):
        mig = [{"uuid": "MIG-1", "gpu_instance": 1, "compute_instance": 0, "profile": profile}]
        gpu = {"pci_bus_id": "0000:00:00.0", "minor": 0, "mig_mode": "Enabled", "mig_devices": mig}
        host = nvidia_host(1, nodes=[*CAPS, char("/dev/dri/renderD128", 226, 128)], files=files, nvml={"gpus": [gpu]})
        nodes = numbers(devices(generate(host, Options()))["0:0"])
        assert ("/dev/dri/renderD128" in nodes) == there


def test_mig_mode_without_mig_devices_is_said() -> None:
    gpu = {"pci_bus_id": "00000000:00:00.0", "minor": 0, "uuid": uuid(0), "mig_mode": "Enabled", "mig_devices": []}
    generated = generate(nvidia_host(2, nvml={"gpus": [gpu]}), Options(strategies=("index",)))
    assert list(devices(generated)) == ["1", "all"]
    assert generated.messages == ("GPU 0 is in MIG mode without MIG devices; left out",)


def test_a_node_that_is_not_there_yet_is_written_and_named() -> None:
    generated = generate(nvidia_host(without=["/dev/nvidia-uvm", "/dev/nvidia1"]), Options(strategies=("index",)))
    assert numbers(generated.spec.container_edits)["/dev/nvidia-uvm"] == "c 510:0"
    assert numbers(devices(generated)["1"]) == {"/dev/nvidia1": "c 195:1"}
    assert generated.messages == (
        "/dev/nvidia1 does not exist yet; written as 195:1, which its driver registered",
        "/dev/nvidia-uvm does not exist yet; written as 510:0, which its driver registered",
    )


def test_a_stale_node_is_written_with_the_registered_numbers() -> None:
    generated = generate(nvidia_host(nodes=[char("/dev/nvidia-uvm", 509, 0, 0o600)]), Options())
    (uvm,) = (n for n in generated.spec.container_edits.device_nodes if n.path == "/dev/nvidia-uvm")
    assert uvm == DeviceNode(uvm.path, type="c", major=510, minor=0, file_mode=0o666, permissions="rwm")
    assert generated.messages == ("/dev/nvidia-uvm is 509:0; written as 510:0, which its driver registered",)


def test_a_driver_that_is_not_loaded_is_named() -> None:
    majors = {name: major for name, major in DEVICES.items() if name != "nvidia-uvm"}
    host = nvidia_host(devices=majors, without=["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])
    generated = generate(host, Options())
    assert "/dev/nvidia-uvm" not in numbers(generated.spec.container_edits)
    assert generated.messages == (
        "/dev/nvidia-uvm does not exist and its driver is not loaded; containers go without it",
    )


def test_libraries_links_and_files_of_a_packaged_driver() -> None:
    host = nvidia_host(
        1,
        nodes=[
            link("/lib", "usr/lib"),
            node(f"{LIB}/libGLX_nvidia.so.{VERSION}"),
            link(f"{LIB}/libGLX_nvidia.so.0", f"libGLX_nvidia.so.{VERSION}"),
            node(f"{LIB}/libnvidia-allocator.so.{VERSION}"),
            node(f"{LIB}/libnvidia-nvvm70.so.4"),
            node(f"{LIB}/libnvidia-egl-gbm.so.1.1.3"),
            node(f"{LIB}/libother.so.1"),
            link(f"{LIB}/libcuda.so.1.old", f"libcuda.so.{VERSION}"),
            node(f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}"),
            node("/usr/lib/xorg/modules/extensions/" + f"libglxserver_nvidia.so.{VERSION}"),
            node(f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"),
            node("/run/nvidia-persistenced/socket", "s"),
            node("/tmp/nvidia-mps", "d"),
            node("/usr/share/vulkan/icd.d/nvidia_icd.json"),
            node("/etc/OpenCL/vendors/nvidia.icd"),
        ],
    )
    generated = generate(host, Options(hooks="nvidia"))
    found = mounts(generated)
    assert f"{LIB}/libother.so.1" not in found
    assert found["/etc/vulkan/icd.d/nvidia_icd.json"] == "/usr/share/vulkan/icd.d/nvidia_icd.json"
    assert {path for path in found if path.startswith(LIB)} == {
        f"{LIB}/libcuda.so.{VERSION}",
        f"{LIB}/libnvidia-ml.so.{VERSION}",
        f"{LIB}/libGLX_nvidia.so.{VERSION}",
        f"{LIB}/libnvidia-allocator.so.{VERSION}",
        f"{LIB}/libnvidia-nvvm70.so.4",
        f"{LIB}/libnvidia-egl-gbm.so.1.1.3",
        f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
    }
    assert {
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/etc/OpenCL/vendors/nvidia.icd",
        "/run/nvidia-persistenced/socket",
        "/tmp/nvidia-mps",
    } <= found.keys()
    options = {mount.container_path: mount.options for mount in generated.spec.container_edits.mounts}
    assert options["/tmp/nvidia-mps"] == ("nosuid", "nodev", "rbind", "rprivate", "noexec")
    assert options["/usr/bin/nvidia-smi"] == ("ro", "nosuid", "nodev", "rbind", "rprivate")
    hooks = {hook.args[1]: hook.args[2:] for hook in generated.spec.container_edits.hooks[1:]}
    assert set(hooks["create-symlinks"][1::2]) == {
        f"libcuda.so.{VERSION}::{LIB}/libcuda.so.1",
        f"libcuda.so.1::{LIB}/libcuda.so",
        f"libcuda.so.{VERSION}::{LIB}/libcuda.so.1.old",
        f"libGLX_nvidia.so.{VERSION}::{LIB}/libGLX_nvidia.so.0",
        f"libGLX_nvidia.so.{VERSION}::{LIB}/libGLX_indirect.so.0",
    }
    assert hooks["update-ldcache"] == ("--folder", LIB, "--folder", f"{LIB}/vdpau")
    assert generated.spec.container_edits.hooks[0].args[2:] == (
        "--link",
        f"../libnvidia-allocator.so.1::{LIB}/gbm/nvidia-drm_gbm.so",
        "--link",
        f"libglxserver_nvidia.so.{VERSION}::/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so",
    )


def test_libraries_found_by_the_cache_and_firmware_beside_them() -> None:
    place = "/opt/nvidia/lib64"
    cache = ldcache(
        [
            ("libcuda.so.1", f"{place}/libcuda.so.1", 0x0303),
            ("libcuda.so.1", "/opt/old/libcuda.so.1", 0x0303),
            ("libcuda.so.1", "/opt/lib32/libcuda.so.1", 0x0803),
        ]
    )
    firmware = f"/opt/nvidia/firmware/nvidia/{VERSION}/gsp_tu10x.bin"
    host = nvidia_host(
        libraries=place,
        nodes=[node(firmware), node("/opt/old/libcuda.so.1"), node("/opt/nvidia/bin/nvidia-debugdump")],
        files={"/etc/ld.so.cache": cache},
    )
    generated = generate(host, Options())
    assert f"NVIDIA_CTK_LIBCUDA_DIR={place}" in generated.spec.container_edits.env
    assert {firmware, f"{place}/libcuda.so.{VERSION}", "/opt/nvidia/bin/nvidia-debugdump"} <= mounts(generated).keys()


def test_libraries_of_another_version_are_an_error_that_says_so() -> None:
    host = nvidia_host(
        without=[f"{LIB}/libcuda.so.{VERSION}", f"{LIB}/libnvidia-ml.so.{VERSION}"],
        nodes=[node(f"{LIB}/libcuda.so.570.1.2")],
    )
    with pytest.raises(NotFound, match=rf"no libcuda\.so\.{VERSION} was found") as caught:
        generate(host, Options())
    assert caught.value.hint is not None
    assert "570.1.2" in caught.value.hint


def test_roots_of_a_driver_container() -> None:
    root = "/run/nvidia/driver"
    host = nvidia_host(
        1,
        libraries=f"{root}{LIB}",
        nodes=[
            link(f"{root}/usr/lib64", f"{LIB}"),  # absolute inside the root: must not leave it
            node(f"{LIB}/libcuda.so.570.1.2"),
            node(f"{root}/usr/bin/nvidia-smi"),
            char(f"{root}/dev/nvidia0", 195, 0),
            char(f"{root}/dev/nvidiactl", 195, 255),
            char(f"{root}/dev/nvidia-uvm", 510, 0),
            char(f"{root}/dev/nvidia-uvm-tools", 510, 1),
        ],
    )
    generated = generate(host, Options(driver_root=root, dev_root=root))
    assert mounts(generated)[f"{LIB}/libcuda.so.{VERSION}"] == f"{root}{LIB}/libcuda.so.{VERSION}"
    assert mounts(generated)["/usr/bin/nvidia-smi"] == f"{root}/usr/bin/nvidia-smi"
    assert [(n.path, n.host_path) for n in devices(generated)["0"].device_nodes] == [
        ("/dev/nvidia0", f"{root}/dev/nvidia0")
    ]
    assert generated.messages == ()


def test_hook_programs_are_found_or_not_used() -> None:
    assert generate(nvidia_host(), Options()).spec.container_edits.hooks == ()
    ctk = generate(nvidia_host(nodes=[node("/usr/bin/nvidia-ctk")]), Options(ldconfig_path="/sbin/ldconfig"))
    assert [hook.args[:3] for hook in ctk.spec.container_edits.hooks] == [
        ("nvidia-ctk", "hook", "create-symlinks"),
        ("nvidia-ctk", "hook", "enable-cuda-compat"),
        ("nvidia-ctk", "hook", "update-ldcache"),
        ("nvidia-ctk", "hook", "disable-device-node-modification"),
        ("nvidia-ctk", "hook", "update-application-profile"),
    ]
    assert ctk.spec.container_edits.hooks[2].args[3:5] == ("--ldconfig-path", "/sbin/ldconfig")
    own = generate(nvidia_host(), Options(hook_path="/opt/nvidia-cdi-hook"))
    assert {hook.path for hook in own.spec.container_edits.hooks} == {"/opt/nvidia-cdi-hook"}


def test_our_own_hook_is_one_entry() -> None:
    asked = generate(nvidia_host(), Options(hooks="gpuiso")).spec
    found = generate(nvidia_host(nodes=[node("/usr/bin/gpuiso-hook")]), Options()).spec
    assert asked == found
    (hook,) = asked.container_edits.hooks
    assert (hook.hook_name, hook.path, hook.args[:2]) == (
        "createContainer",
        "/usr/bin/gpuiso-hook",
        ("gpuiso-hook", "createContainer"),
    )
    assert hook.env != ()
    work = container_work(list(hook.args[2:]))
    assert (work.driver_version, work.profile, work.hide_modification) == (VERSION, True, True)
    assert ("libcuda.so.1", f"{LIB}/libcuda.so") in work.links
    libraries = dict(work.libraries)
    assert {"libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"} <= set(libraries[LIB])


def test_our_own_hook_lets_management_make_nodes() -> None:
    generated = generate(nvidia_host(), Options(mode="management", hooks="gpuiso"))
    (hook,) = generated.spec.container_edits.hooks
    work = container_work(list(hook.args[2:]))
    assert (work.profile, work.hide_modification) == (False, False)
    assert work.libraries != []


def test_a_host_without_gpus_or_with_a_bad_kind() -> None:
    with pytest.raises(NotSupported, match="no GPU here"):
        generate(FakeHost(files={"/proc/devices": ""}), Options())
    with pytest.raises(BadInput, match="must start with a letter"):
        generate(nvidia_host(), Options(vendor="1nvidia"))


def test_without_numbers_the_engine_reads_them() -> None:
    generated = generate(nvidia_host(1), Options(strategies=("index",), numbers=False))
    assert devices(generated)["0"].device_nodes == (DeviceNode("/dev/nvidia0", permissions="rwm"),)
    assert numbers(generated.spec.container_edits)["/dev/nvidia-uvm"] == " 0:0"


def test_what_could_not_be_asked_is_said() -> None:
    generated = generate(nvidia_host(nvml=Unknown("NVML", "no answer in 3 s")), Options())
    assert generated.messages == ("not known here: NVML: no answer in 3 s",)
    assert "0" in devices(generated)


def test_names_that_are_no_text_are_passed_over() -> None:
    odd = node(f"{LIB}/lib\udcff.so.{VERSION}")
    assert not any("\udcff" in path for path in mounts(generate(nvidia_host(nodes=[odd]), Options())))
