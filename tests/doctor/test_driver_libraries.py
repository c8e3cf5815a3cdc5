# SPDX-License-Identifier: Apache-2.0
"""libcuda and libnvidia-ml against the kernel module, stubs and compatibility packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.findings import found, map_files, severities
from tests.records import RecordMaker

DIRECTORY = "/usr/lib/x86_64-linux-gnu"
LIBCUDA = f"{DIRECTORY}/libcuda.so.580.159.04"
STUB = "/usr/local/cuda/targets/x86_64-linux/lib/stubs/libcuda.so"
OLD_MESSAGE = (
    "NVRM: API mismatch: the client has the version {0}, but\n[  9.4] NVRM: this kernel module has the version {1}."
)
NEW_MESSAGE = (
    "NVRM: API mismatch: the client 'nvidia-smi' (pid 812) has the version {0}, but this kernel module has the"
    " version {1}.  Please make sure that this kernel module and all NVIDIA driver components have the same version."
)


def install(maker: RecordMaker, version: str, directory: str = DIRECTORY) -> None:
    for name in ("libcuda.so", "libnvidia-ml.so"):
        link(maker, f"{directory}/{name}.1", f"{name}.{version}")
        file(maker, f"{directory}/{name}.{version}")


def link(maker: RecordMaker, path: str, target: str) -> None:
    maker.nodes[path] = {"path": path, "type": "l", "target": target}


def file(maker: RecordMaker, path: str) -> None:
    maker.nodes[path] = {"path": path, "type": "f"}


def process(maker: RecordMaker, path: str, *mapped: str) -> None:
    maker.add_process(7, {"LD_LIBRARY_PATH": path} if path else {})
    map_files(maker, 7, "/usr/bin/python3", *mapped)


@pytest.mark.parametrize(("version", "expected"), [("580.159.04", []), ("580.95.05", [("GPU-DRV-MISMATCH", "error")])])
def test_libraries_and_module(tmp_path: Path, version: str, expected: list[tuple[str, str]]) -> None:
    maker = RecordMaker(tmp_path)
    install(maker, version)
    assert severities(maker) == expected


def test_debians_alternatives_are_followed(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    alternative = "/etc/alternatives/glx--libcuda.so.1-x86_64-linux-gnu"
    link(maker, f"{DIRECTORY}/libcuda.so.1", alternative)
    link(maker, alternative, f"{DIRECTORY}/nvidia/current/libcuda.so.1")
    install(maker, "535.247.01", f"{DIRECTORY}/nvidia/current")
    [finding] = found(maker, "GPU-DRV-MISMATCH")
    assert any("libcuda.so.535.247.01" in evidence.says for evidence in finding.evidence)


@pytest.mark.parametrize("message", [OLD_MESSAGE, NEW_MESSAGE])
def test_a_client_of_another_version(tmp_path: Path, message: str) -> None:
    maker = RecordMaker(tmp_path)
    install(maker, "580.159.04")
    maker.tools["dmesg.txt"] = f"[  9.4] {message.format('570.86.15', '580.159.04')}\n"
    [finding] = found(maker, "GPU-DRV-MISMATCH")
    assert finding.severity == "info"
    assert "570.86.15" in finding.cause


def test_a_message_of_a_module_that_is_gone(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    install(maker, "580.159.04")
    maker.tools["dmesg.txt"] = f"[  9.4] {NEW_MESSAGE.format('580.159.04', '570.86.15')}\n"
    assert severities(maker) == []


def test_a_message_where_the_libraries_are_unknown(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.tools["dmesg.txt"] = f"[  9.4] {NEW_MESSAGE.format('570.86.15', '580.159.04')}\n"
    assert severities(maker) == [("GPU-DRV-MISMATCH", "warning")]


def test_a_stub_in_use(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, "/usr/local/cuda/lib64/stubs:/opt/lib", STUB)
    [finding] = found(maker, "GPU-LIB-STUB", 7)
    assert finding.severity == "error"
    assert finding.fix[0].command == "export LD_LIBRARY_PATH=/opt/lib"


def test_a_stub_by_run_path(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, "", STUB)
    [finding] = found(maker, "GPU-LIB-STUB", 7)
    assert finding.fix[0].command is None


@pytest.mark.parametrize(
    ("path", "there", "mapped", "severity"),
    [
        ("/usr/local/cuda/lib64/stubs", ("/usr/local/cuda/lib64/stubs",), (), "warning"),
        ("/usr/local/cuda/lib64/stubs", ("/usr/local/cuda/lib64/stubs",), (LIBCUDA,), None),
        ("/drv:/cuda/stubs", ("/drv", "/cuda/stubs"), (), None),
        ("/cuda/stubs:/drv", ("/drv",), (), None),
    ],
)
def test_a_stub_on_the_path(
    tmp_path: Path, path: str, there: tuple[str, ...], mapped: tuple[str, ...], severity: str | None
) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, path, *mapped)
    for directory in path.split(":"):
        place = f"/proc/7/root{directory}"
        maker.nodes[place] = {"path": place, "type": "d"}
        if directory in there:
            file(maker, f"{place}/libcuda.so")
    assert [finding.severity for finding in found(maker, "GPU-LIB-STUB", 7)] == ([severity] if severity else [])


def compat(directory: Path, model: str, version: str) -> RecordMaker:
    maker = RecordMaker(directory)
    for index in (0, 1):
        information = f"/proc/driver/nvidia/gpus/0000:{index:02x}:00.0/information"
        maker.files[information] = str(maker.files[information]).replace("NVIDIA H200", model)
    library = f"/usr/local/cuda-13.0/compat/libcuda.so.{version}"
    process(maker, "/usr/local/cuda-13.0/compat", library)
    file(maker, f"/proc/7/root{library}")
    return maker


@pytest.mark.parametrize(
    ("model", "version", "code"),
    [
        ("NVIDIA GeForce RTX 4090", "590.44.01", "804"),
        ("NVIDIA TITAN RTX", "590.44.01", "804"),
        ("NVIDIA H200", "590.44.01", None),
        ("NVIDIA RTX 6000 Ada Generation", "590.44.01", None),
        ("NVIDIA H200", "570.86.15", "803"),
        ("NVIDIA GeForce RTX 4090", "580.159.04", None),
    ],
)
def test_compatibility_packages(tmp_path: Path, model: str, version: str, code: str | None) -> None:
    findings = found(compat(tmp_path, model, version), "GPU-CUDA-COMPAT-804", 7)
    assert [finding.severity for finding in findings] == (["error"] if code else [])
    assert all(str(code) in finding.cause for finding in findings)


def test_a_compatibility_package_that_works(tmp_path: Path) -> None:
    maker = compat(tmp_path, "NVIDIA GeForce RTX 4090", "590.44.01")
    link(maker, "/proc/7/fd/3", "/dev/nvidia-uvm")
    assert found(maker, "GPU-CUDA-COMPAT-804", 7) == []


def test_a_directory_on_the_path_that_is_not_there(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    process(maker, "/usr/local/cuda/compat/lib")
    maker.nodes["/proc/7/root/usr/local/cuda"] = {"path": "/proc/7/root/usr/local/cuda", "type": "d"}
    assert severities(maker, 7) == []


def test_a_compatibility_package_for_the_whole_host(tmp_path: Path) -> None:
    maker = compat(tmp_path, "NVIDIA GeForce RTX 4090", "590.44.01")
    install(maker, "580.159.04")
    directory = "/usr/local/cuda-13.0/compat"
    link(maker, f"{directory}/libcuda.so.1", "libcuda.so.590.44.01")
    file(maker, f"{directory}/libcuda.so.590.44.01")
    link(maker, f"{DIRECTORY}/libcuda.so.1", f"{directory}/libcuda.so.1")
    assert found(maker, "GPU-CUDA-COMPAT-804")[0].target.pid is None
    assert found(maker, "GPU-DRV-MISMATCH") == []
