# SPDX-License-Identifier: Apache-2.0
"""createContainer on root filesystems in a temporary directory."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from gpuiso.hook import container
from gpuiso.hook.arguments import container_work
from gpuiso.hook.cover import cover
from gpuiso.hook.errors import HookError
from gpuiso.hook.state import State
from gpuiso.hook.undo import Undo
from tests.children import in_child
from tests.hook.parts import LIB, make_bundle, own_mounts, prepare, state_document, tree
from tests.tiers import requires

ALL_WORK = [
    *("--link", f"libcuda.so.1::{LIB}/libcuda.so", "--link", f"../card0::{'/dev/dri/by-path'}/pci-0"),
    *("--library", f"{LIB}=libcuda.so.1,libnvidia-ml.so.1", "--host-driver-version=580.126.09"),
    *("--application-profile", "--chmod", "711:/srv"),
]
GPUS = {"linux": {"devices": [{"path": "/dev/nvidia1", "type": "c"}, {"path": "/dev/nvidiactl", "type": "c"}]}}


def cached(rootfs: Path) -> list[tuple[str, str]]:
    """What the C library's own tool reads in the cache: (name, path), in order."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", f"{rootfs}/etc/ld.so.cache"], capture_output=True, text=True, check=True
    ).stdout
    pairs = [line.split(" => ") for line in listed.splitlines() if " => " in line]
    return [(left.split()[0], right) for left, right in pairs]


def test_all_that_a_gpu_container_needs(tmp_path: Path) -> None:
    rootfs = make_bundle(tmp_path, GPUS)
    (rootfs / "srv").mkdir()
    prepare(tmp_path, *ALL_WORK)
    assert os.readlink(rootfs / LIB[1:] / "libcuda.so") == "libcuda.so.1"
    assert os.readlink(rootfs / "dev/dri/by-path/pci-0") == "../card0"
    assert (rootfs / "srv").stat().st_mode & 0o777 == 0o711
    profile = (rootfs / "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf").read_text()
    settings = profile.replace("0x2", "2")
    assert json.loads(settings)["profiles"][0]["settings"] == ["EGLVisibleDGPUDevices", 2]
    assert cached(rootfs) == [
        ("libnvidia-ml.so.1", f"{LIB}/libnvidia-ml.so.1"),
        ("libcuda.so.1", f"{LIB}/libcuda.so.1"),
    ]
    assert not [name for name in tree(rootfs) if ".gpuiso-hook-" in name]


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    rootfs = make_bundle(tmp_path, GPUS)
    (rootfs / "srv").mkdir()
    prepare(tmp_path, *ALL_WORK)
    before = tree(rootfs)
    prepare(tmp_path, *ALL_WORK)
    assert tree(rootfs) == before


def test_files_and_links_of_the_image_are_replaced(tmp_path: Path) -> None:
    rootfs = make_bundle(tmp_path)
    directory = rootfs / LIB[1:]
    directory.mkdir(parents=True)
    (directory / "libcuda.so").write_text("of the image")
    (directory / "libcuda.so.1").symlink_to("libcuda.so.1.0")
    links = ["--link", f"libcuda.so.1::{LIB}/libcuda.so", "--link", f"libcuda.so.580::{LIB}/libcuda.so.1"]
    prepare(tmp_path, *links)
    assert {name: os.readlink(directory / name) for name in sorted(os.listdir(directory))} == {
        "libcuda.so": "libcuda.so.1",
        "libcuda.so.1": "libcuda.so.580",
    }


def test_a_directory_in_the_place_of_a_link_is_an_error(tmp_path: Path) -> None:
    rootfs = make_bundle(tmp_path)
    (rootfs / "opt/libcuda.so").mkdir(parents=True)
    before = tree(rootfs)
    undo = None
    with pytest.raises(HookError, match=r"cannot link /opt/libcuda.so in the container.*Is a directory"):
        undo = prepare(tmp_path, "--link", "libcuda.so.1::/opt/libcuda.so")
    assert undo is None
    assert tree(rootfs) == before


@pytest.mark.parametrize("image", ["590.12.01", "580.00.01", "470.1"])
def test_compatibility_libraries_of_a_later_driver_come_first(tmp_path: Path, image: str) -> None:
    rootfs = make_bundle(tmp_path)
    compat = rootfs / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    for name in (f"libcuda.so.{image}", f"libnvidia-nvvm.so.{image}"):
        (compat / name).write_text("")
    (compat / "libcuda.so.1").symlink_to(f"libcuda.so.{image}")
    (compat / "libcuda.so").symlink_to("libcuda.so.1")
    conf = rootfs / "etc/ld.so.conf.d"
    conf.mkdir(parents=True)
    (conf / "libc.conf").write_text("/usr/local/lib\n")
    prepare(tmp_path, "--library", f"{LIB}=libcuda.so.1", "--host-driver-version", "580.126.09")
    found = [path for name, path in cached(rootfs) if name == "libcuda.so.1"]
    later = image.startswith("590")
    assert found == (["/usr/local/cuda/compat/libcuda.so.1"] if later else []) + [f"{LIB}/libcuda.so.1"]
    assert (conf / "00-gpuiso.conf").exists() == later


def test_unusual_directories_outlive_the_containers_own_ldconfig(tmp_path: Path) -> None:
    rootfs = make_bundle(tmp_path)
    conf = rootfs / "etc/ld.so.conf.d"
    conf.mkdir(parents=True)
    (conf / "libc.conf").write_text("/usr/local/lib\n")
    prepare(tmp_path, "--library", "/usr/local/nvidia/lib64=libcuda.so.1", "--library", f"{LIB}=libx.so")
    assert (conf / "00-gpuiso.conf").read_text() == "/usr/local/nvidia/lib64\n"


STEPS = ["links", "cache", "conf", "modes", "profile", "params"]


@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_any_step_leaves_everything_as_before(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rootfs = make_bundle(tmp_path, GPUS)
    (rootfs / "srv").mkdir()
    (rootfs / "etc/ld.so.conf.d").mkdir(parents=True)
    (rootfs / "etc/ld.so.conf.d/libc.conf").write_text("/usr/local/lib\n")
    (rootfs / "etc/ld.so.cache").write_bytes(b"not a cache")
    (rootfs / LIB[1:]).mkdir(parents=True)
    (rootfs / LIB[1:] / "libcuda.so").write_text("of the image")
    before = tree(rootfs)

    def fail(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    names = {
        "links": "_compat_libraries",
        "cache": "_write_conf",
        "conf": "_chmod",
        "modes": "_profile",
        "profile": "_hide_modification",
    }
    if step == "params":
        monkeypatch.setattr(container, "cover", fail)
        params = tmp_path / "params"
        params.write_text("ModifyDeviceFiles: 1\n")
        monkeypatch.setattr(container, "PARAMS", str(params))
    else:
        monkeypatch.setattr(container, names[step], fail)
    undo = Undo()
    work = [*ALL_WORK, "--no-node-modification", "--library", "/opt/lib=liby.so"]
    with pytest.raises(HookError, match=r"cannot .* in the container: No space left on device"):
        container.prepare_container(State(state_document(tmp_path)), container_work(work), undo)
    assert tree(rootfs) != before
    assert undo.take_back() == []
    assert tree(rootfs) == before


@requires("kernel")
def test_the_params_file_is_covered_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rootfs = make_bundle(tmp_path)
    params = rootfs / "proc/driver/nvidia/params"
    params.parent.mkdir(parents=True)
    params.write_text("ResmanDebugLevel: 1\nModifyDeviceFiles: 1\n")
    host = tmp_path / "params"
    host.write_text("ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n")
    monkeypatch.setattr(container, "PARAMS", str(host))
    # The path is the host's and the container's; here the host's lies elsewhere.
    inside = "/proc/driver/nvidia/params"
    monkeypatch.setattr(container, "cover", lambda fs, path, data: cover(fs, inside, data))

    def look() -> None:
        own_mounts()
        undo = prepare(tmp_path, "--no-node-modification", finish=False)
        assert params.read_text() == "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n"
        with pytest.raises(OSError, match="Read-only"):
            params.write_text("x")
        with open("/proc/self/mountinfo") as lines:
            mounts = [line.split()[4] for line in lines if str(rootfs) in line]
        assert mounts == [str(params)]
        assert undo.take_back() == []
        assert params.read_text() == "ResmanDebugLevel: 1\nModifyDeviceFiles: 1\n"

    assert in_child(look) == 0


@requires("kernel")
def test_a_read_only_root_gets_its_cache_from_memory(tmp_path: Path) -> None:
    rootfs = make_bundle(tmp_path)
    (rootfs / "etc").mkdir()
    (rootfs / "etc/ld.so.cache").write_bytes(b"")

    def look() -> None:
        own_mounts()
        subprocess.run(["mount", "--bind", rootfs, rootfs], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", rootfs], check=True)
        prepare(tmp_path, "--library", f"{LIB}=libcuda.so.1")
        assert cached(rootfs) == [("libcuda.so.1", f"{LIB}/libcuda.so.1")]

    assert in_child(look) == 0
    assert (rootfs / "etc/ld.so.cache").read_bytes() == b""
