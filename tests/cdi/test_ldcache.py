# SPDX-License-Identifier: Apache-2.0
"""The parser of /etc/ld.so.cache."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuiso.cdi.generate.ldcache import CachedLibrary, parse_ldcache
from gpuiso.errors import BadInput
from tests.cdi.nvidia_host import ldcache
from tests.support import REPOSITORY

X86_64, I386, AARCH64 = 0x0303, 0x0803, 0x0A03
ENTRIES = [
    ("libcuda.so.1", "/usr/lib64/libcuda.so.1", X86_64),
    ("libcuda.so.1", "/usr/lib32/libcuda.so.1", I386),
    ("libcuda.so.1", "/opt/arm/libcuda.so.1", AARCH64),
    ("libold.so", "/lib/libold.so", 0x0001),
]


@pytest.mark.parametrize("behind_old", [False, True])
def test_entries_with_their_width(behind_old: bool) -> None:
    assert parse_ldcache(ldcache(ENTRIES, behind_old=behind_old)) == (
        CachedLibrary("libcuda.so.1", "/usr/lib64/libcuda.so.1", True),
        CachedLibrary("libcuda.so.1", "/usr/lib32/libcuda.so.1", False),
        CachedLibrary("libcuda.so.1", "/opt/arm/libcuda.so.1", True),
    )


def test_the_recorded_cache() -> None:
    libraries = parse_ldcache((REPOSITORY / "examples/hosts/h200-x4/root/etc/ld.so.cache").read_bytes())
    assert len(libraries) == 520
    assert [lib.path for lib in libraries if lib.name == "libcuda.so.1" and lib.is_64_bit] == [
        "/usr/local/nvidia/lib64/libcuda.so.1",
        "/lib/libcuda.so.1",
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "neither of the known magic words"),
        (b"\x7fELF", "neither of the known magic words"),
        (b"ld.so-1.7.0\0\0\0\0\0", "names no architecture"),
        (b"glibc-ld.so.cache1.1", "cut off inside its header"),
        (ldcache(ENTRIES)[:100], "do not fit"),
        (ldcache(ENTRIES[:1])[:-1], "does not end inside the file"),
    ],
)
def test_what_is_no_cache_is_refused_in_a_sentence(data: bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_ldcache(data)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_cache_is_read_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(ldcache(ENTRIES, behind_old=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        libraries = parse_ldcache(bytes(damaged))
    except BadInput as error:
        assert error.message  # noqa: PT017 - either outcome is right; this one must say something
    else:
        assert all(isinstance(library.path, str) for library in libraries)
