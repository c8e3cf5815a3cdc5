# SPDX-License-Identifier: Apache-2.0
"""Which file a program gets for a library's name."""

from __future__ import annotations

import ctypes.util
import struct
import subprocess
from pathlib import Path

import pytest

from gpuiso.errors import Unknown
from gpuiso.gpu.libraries import LIBCUDA, cached_paths, find_library, library_at
from tests.records import RecordMaker
from tests.support import SHARED, needs_shared

X86_64, X86, AARCH64 = 0x0303, 0x0003, 0x0A03
DIRECTORY = "/usr/lib/x86_64-linux-gnu"


def cache(*entries: tuple[int, str, str], before: bytes = b"") -> bytes:
    """An ld.so.cache of flags, name and path."""
    strings = b""
    table = b""
    base = 48 + 24 * len(entries)
    for flags, name, path in entries:
        key = base + len(strings)
        strings += name.encode() + b"\0"
        value = base + len(strings)
        strings += path.encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, key, value, 0, 0)
    header = struct.pack("=20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(strings), 2, 0)
    return before + header + table + strings


def test_the_order_of_the_cache_counts() -> None:
    data = cache(
        (X86_64, LIBCUDA, "/b/libcuda.so.1"), (X86_64, LIBCUDA, "/a/libcuda.so.1"), (X86_64, "libm.so.6", "/m")
    )
    assert cached_paths(data, LIBCUDA) == ("/b/libcuda.so.1", "/a/libcuda.so.1")


def test_libraries_for_32_bit_programs_are_passed_over() -> None:
    data = cache((X86, LIBCUDA, "/usr/lib/i386-linux-gnu/libcuda.so.1"), (AARCH64, LIBCUDA, "/arm/libcuda.so.1"))
    assert cached_paths(data, LIBCUDA) == ("/arm/libcuda.so.1",)


def test_a_cache_behind_one_of_the_old_format() -> None:
    data = cache((X86_64, LIBCUDA, "/b/libcuda.so.1"), before=b"ld.so-1.7.0\0" + bytes(20))
    assert cached_paths(data, LIBCUDA) == ("/b/libcuda.so.1",)


@pytest.mark.parametrize("length", [0, 10, 47, 60, 80])
def test_a_damaged_cache(length: int) -> None:
    data = cache((X86_64, LIBCUDA, "/b/libcuda.so.1"))[:length]
    assert cached_paths(data, LIBCUDA) == ()


def test_a_cache_that_promises_more_than_it_holds() -> None:
    data = bytearray(cache((X86_64, LIBCUDA, "/b/libcuda.so.1")))
    data[20:24] = struct.pack("=I", 2**32 - 1)
    assert cached_paths(bytes(data), LIBCUDA) == ("/b/libcuda.so.1",)


@pytest.mark.skipif(not Path("/etc/ld.so.cache").is_file(), reason="no /etc/ld.so.cache")
def test_this_machines_cache_is_read_as_ldconfig_reads_it() -> None:
    name = ctypes.util.find_library("c")
    assert name is not None
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    wanted = [line.split(" => ")[1] for line in listed.splitlines() if line.strip().startswith(f"{name} (libc6,")]
    assert list(cached_paths(Path("/etc/ld.so.cache").read_bytes(), name)) == wanted


@needs_shared
def test_the_cache_of_a_recorded_host() -> None:
    assert SHARED is not None
    data = (SHARED / "hosts/h200-x4/root/etc/ld.so.cache").read_bytes()
    assert cached_paths(data, LIBCUDA)[0] == "/usr/local/nvidia/lib64/libcuda.so.1"


def link(maker: RecordMaker, path: str, target: str) -> None:
    maker.nodes[path] = {"path": path, "type": "l", "target": target}


def test_links_are_followed_to_the_version(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    link(maker, f"{DIRECTORY}/libcuda.so.1", "../nvidia/libcuda.so.1")
    link(maker, "/usr/lib/nvidia/libcuda.so.1", "libcuda.so.470.256.02")
    maker.nodes["/usr/lib/nvidia/libcuda.so.470.256.02"] = {
        "path": "/usr/lib/nvidia/libcuda.so.470.256.02",
        "type": "f",
    }
    library = find_library(maker.host(), LIBCUDA)
    assert library is not None
    assert (library.file, library.version) == ("/usr/lib/nvidia/libcuda.so.470.256.02", "470.256.02")


def test_a_library_without_a_version_in_its_name(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.nodes[f"{DIRECTORY}/libcuda.so.1"] = {"path": f"{DIRECTORY}/libcuda.so.1", "type": "f"}
    library = library_at(maker.host(), f"{DIRECTORY}/libcuda.so.1")
    assert library is not None
    assert library.version is None


def test_what_is_not_recorded_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(Unknown):
        find_library(RecordMaker(tmp_path).host(), LIBCUDA)


def test_a_cache_whose_first_file_is_unknown_is_not_guessed_past(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    link(maker, f"{DIRECTORY}/libcuda.so.1", "libcuda.so.470.256.02")
    directory = maker.write()
    place = directory / "root/etc"
    place.mkdir(parents=True)
    data = cache((X86_64, LIBCUDA, "/opt/libcuda.so.1"), (X86_64, LIBCUDA, f"{DIRECTORY}/libcuda.so.1"))
    (place / "ld.so.cache").write_bytes(data)
    from gpuiso.host.recorded import RecordedHost

    with pytest.raises(Unknown):
        find_library(RecordedHost(str(directory)), LIBCUDA)
