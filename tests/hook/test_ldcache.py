# SPDX-License-Identifier: Apache-2.0
"""Caches that are written here, read by glibc's own ldconfig and by its loader."""

from __future__ import annotations

import itertools
import os
import platform
import struct
import subprocess
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from gpuiso.cdi.generate.ldcache import parse_ldcache
from gpuiso.hook.errors import HookError
from gpuiso.hook.ldcache import _compare as compare
from gpuiso.hook.ldcache import add_libraries, flags_of

X86 = flags_of("x86_64")
names = st.text("lib.so0123456789-_xyzAB", min_size=1, max_size=14)


def listed(tmp_path: Path, cache: bytes) -> list[tuple[str, str]]:
    """(name, path) as ``ldconfig -p`` prints them."""
    (tmp_path / "cache").write_bytes(cache)
    command = ["/sbin/ldconfig", "-p", "-C", str(tmp_path / "cache")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = [line.strip().split(" => ") for line in lines if " => " in line]
    return [(left.split(" (")[0], right) for left, right in pairs]


def reference(one: str, other: str) -> int:
    """The comparison as a list of parts: digits together are a number, and more than any character."""

    def parts(text: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        digits = ""
        for letter in [*text, ""]:
            if letter.isdigit():
                digits += letter
                continue
            if digits:
                found.append((1, int(digits)))
                digits = ""
            if letter:
                found.append((0, ord(letter)))
        return found

    return (parts(one) > parts(other)) - (parts(one) < parts(other))


@hypothesis.given(names, names)
def test_names_are_compared_as_the_loader_does(one: str, other: str) -> None:
    found = compare(one.encode(), other.encode())
    assert (found > 0) - (found < 0) == reference(one, other)


@hypothesis.given(st.lists(names, max_size=12), st.lists(names, max_size=12))
def test_tables_descend_and_hold_all(first: list[str], second: list[str]) -> None:
    cache = add_libraries(None, [(name, f"/a/{name}") for name in first], X86)
    both = add_libraries(cache, [(name, f"/b/{name}") for name in second], X86)
    found = [(library.name, library.path) for library in parse_ldcache(both)]
    assert set(found) == {(n, f"/a/{n}") for n in first} | {(n, f"/b/{n}") for n in second}
    assert all(reference(one[0], other[0]) >= 0 for one, other in itertools.pairwise(found))
    for name in set(first) & set(second):
        assert [path for one, path in found if one == name] == [f"/b/{name}", f"/a/{name}"]
    assert add_libraries(both, [(name, f"/b/{name}") for name in second], X86) == both


def made_by_ldconfig(tmp_path: Path) -> bytes:
    """The cache of a root filesystem with libraries in it, glibc-hwcaps among them where ldconfig knows them."""
    root = tmp_path / "root"
    for directory in ("lib", "lib/glibc-hwcaps/x86-64-v3", "etc"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    source = next(Path("/lib").glob(f"{platform.machine()}-linux-gnu/libm.so.6"))
    for place in ("lib", "lib/glibc-hwcaps/x86-64-v3"):
        (root / place / "libm.so.6").write_bytes(source.read_bytes())
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True, capture_output=True)
    return (root / "etc/ld.so.cache").read_bytes()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the directory names of glibc-hwcaps are x86-64's")
def test_ldconfig_reads_what_it_made_and_we_added_to(tmp_path: Path) -> None:
    cache = made_by_ldconfig(tmp_path)
    before = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", str(tmp_path / "root/etc/ld.so.cache")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    ours = [("libcuda.so.1", "/usr/lib/libcuda.so.1"), ("libzzz.so", "/usr/lib/libzzz.so")]
    cache = add_libraries(cache, ours, X86)
    (tmp_path / "new").write_bytes(cache)
    after = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", str(tmp_path / "new")], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    # Its own lines are as they were, the sub-architectures in them too.
    assert [line for line in after[1:] if "libcuda" not in line and "libzzz" not in line] == before[1:]
    assert listed(tmp_path, cache)[0][0] == "libzzz.so"
    assert ("libcuda.so.1", "/usr/lib/libcuda.so.1") in listed(tmp_path, cache)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"x" * 100,
        b"glibc-ld.so.cache1.1",
        struct.pack("=20sIIB3xI12x", b"glibc-ld.so.cache1.1", 1 << 30, 0, 2, 0),
        struct.pack("=20sIIB3xI12x", b"glibc-ld.so.cache1.1", 1, 0, 2, 0) + struct.pack("=iIIIQ", 3, 9999, 9999, 0, 0),
        b"ld.so-1.7.0\0" + struct.pack("=I", 0xFFFFFFF),
        b"ld.so-1.7.0\0",
    ],
)
def test_a_cache_without_sense_is_replaced(tmp_path: Path, junk: bytes) -> None:
    assert listed(tmp_path, add_libraries(junk, [("liba.so", "/x/liba.so")], X86)) == [("liba.so", "/x/liba.so")]


def test_both_formats_in_one_file(tmp_path: Path) -> None:
    new = add_libraries(None, [("liba.so", "/x/liba.so")], X86)
    old = b"ld.so-1.7.0\0" + struct.pack("=I", 1) + struct.pack("=iII", 3, 0, 0)
    both = old + b"\0" * (-len(old) % 8) + new
    assert listed(tmp_path, add_libraries(both, [("libb.so", "/x/libb.so")], X86)) == [
        ("libb.so", "/x/libb.so"),
        ("liba.so", "/x/liba.so"),
    ]


@hypothesis.given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_taken(noise: bytes, at: int) -> None:
    whole = add_libraries(None, [(f"lib{n}.so", f"/x/lib{n}.so") for n in range(5)], X86)
    damaged = whole[:at] + noise + whole[at + len(noise) :]
    added = add_libraries(damaged, [("libnew.so", "/x/libnew.so")], X86)
    assert added.startswith(b"glibc-ld.so.cache1.1")
    assert b"libnew.so\0" in added


def test_other_machines() -> None:
    assert flags_of("aarch64") == 0x0A03
    with pytest.raises(HookError, match="how libraries of sparc64 are marked is not known"):
        flags_of("sparc64")
    assert os.uname().machine == platform.machine()
