# SPDX-License-Identifier: Apache-2.0
"""Keeping a directory of specs as the host is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuiso.cdi.cache import load
from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Options, generate
from gpuiso.cdi.refresh import concerns_gpus, file_name, make_directory, refresh, uevents, watch, write_spec
from gpuiso.errors import BadInput, NotSupported
from gpuiso.host.live import LiveHost
from tests.cdi.fake_host import FakeHost
from tests.cdi.nvidia_host import nvidia_host
from tests.tiers import requires


class Mixed(FakeHost):
    """GPUs made up, the directory of specs real."""

    def __init__(self, host: FakeHost, directory: Path) -> None:
        super().__init__(host.nodes.values(), host.files)
        self._directory = str(directory)
        self._live = LiveHost()

    def listdir(self, path: str) -> tuple[str, ...] | None:
        return self._live.listdir(path) if path.startswith(self._directory) else super().listdir(path)

    def read(self, path: str) -> bytes | None:
        return self._live.read(path) if path.startswith(self._directory) else super().read(path)


def test_a_file_is_written_only_when_it_differs(tmp_path: Path) -> None:
    directory = tmp_path / "cdi"
    (first,) = refresh(Mixed(nvidia_host(), directory), Options(), str(directory))
    file = directory / "nvidia.yaml"
    assert (first.file, first.changed) == (str(file), True)
    assert (file.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o644, 0o755)
    assert list(load(LiveHost(), (str(directory),)).devices)[:2] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    inode = file.stat().st_ino

    (second,) = refresh(Mixed(nvidia_host(), directory), Options(), str(directory))
    assert not second.changed
    assert file.stat().st_ino == inode

    (third,) = refresh(Mixed(nvidia_host(1), directory), Options(), str(directory))
    assert third.changed
    assert os.listdir(directory) == ["nvidia.yaml"]
    assert file.read_text() == to_yaml(third.generated.spec)


def test_another_file_with_the_same_devices_is_not_made_a_conflict(tmp_path: Path) -> None:
    spec = generate(nvidia_host(), Options()).spec
    (tmp_path / "other.yaml").write_text(to_yaml(spec))
    with pytest.raises(BadInput, match=r"other\.yaml: it defines nvidia\.com/gpu=0 too"):
        write_spec(LiveHost(), str(tmp_path / "nvidia.yaml"), spec)
    assert os.listdir(tmp_path) == ["other.yaml"]


def test_a_host_without_gpus_is_not_supported_and_leaves_the_files(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text("old")
    with pytest.raises(NotSupported, match="no GPU here"):
        refresh(Mixed(FakeHost(files={"/proc/devices": ""}), tmp_path), Options(), str(tmp_path))
    assert (tmp_path / "nvidia.yaml").read_text() == "old"


def test_watching_goes_on_when_the_driver_comes_and_goes(tmp_path: Path) -> None:
    hosts = [FakeHost(files={"/proc/devices": ""}), nvidia_host(1), nvidia_host(1), nvidia_host(2)]
    found = []
    for outcome in watch(lambda: Mixed(hosts.pop(0), tmp_path), Options(), str(tmp_path), iter([None, None, None])):
        found.append(type(outcome) if isinstance(outcome, Exception) else [one.changed for one in outcome])
    assert found == [NotSupported, [True], [False], [True]]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("nvidia.com/gpu", "nvidia.yaml"),
        ("amd.com/gpu", "amd.yaml"),
        ("nvidia.com/gds", "nvidia-gds.yaml"),
        ("management.nvidia.com/gpu", "management.nvidia.yaml"),
    ],
)
def test_file_names(kind: str, name: str) -> None:
    assert file_name(kind) == name


def test_which_events_matter() -> None:
    assert concerns_gpus({"SUBSYSTEM": "drm", "DEVPATH": "/devices/pci0000:00/drm/card0"})
    assert concerns_gpus({"SUBSYSTEM": "module", "DEVPATH": "/module/amdgpu"})
    assert concerns_gpus({"SUBSYSTEM": "drivers", "DEVPATH": "/bus/pci/drivers/nvidia"})
    assert not concerns_gpus({"SUBSYSTEM": "block", "DEVPATH": "/devices/virtual/block/loop0"})
    assert not concerns_gpus({})


def test_a_directory_is_made_for_everyone_to_read(tmp_path: Path) -> None:
    make_directory(str(tmp_path / "a/b"))
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755


def test_without_events_the_interval_decides() -> None:
    pytest.importorskip("pyroute2")
    events = uevents(0.05, settle=0)
    assert [next(events), next(events)] == ["interval", "interval"]
    events.close()


@requires("kernel")
def test_a_uevent_of_the_kernel_ends_the_wait() -> None:
    """Asks the kernel to repeat the uevent of a PCI device; nothing changes by that."""
    pytest.importorskip("pyroute2")
    devices = sorted(Path("/sys/bus/pci/devices").glob("*/uevent")) or sorted(Path("/sys/module").glob("*/uevent"))
    if not devices:
        pytest.skip("no PCI device and no module that can repeat its uevent")
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(0.05):
            devices[0].write_text("change")

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        events = uevents(60, settle=0)
        assert next(events) == "event"
        events.close()
    finally:
        stop.set()
        thread.join()
