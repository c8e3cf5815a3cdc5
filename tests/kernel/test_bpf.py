# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuiso.kernel import bpf
from tests.kernel.maps import ARRAY, HASH, map_create, map_update
from tests.tiers import requires

pytestmark = requires("kernel")

MOV_R0_0 = bytes.fromhex("b700000000000000")
MOV_R0_1 = bytes.fromhex("b700000001000000")
EXIT = bytes.fromhex("9500000000000000")
DENY, ALLOW = MOV_R0_0 + EXIT, MOV_R0_1 + EXIT


@pytest.fixture
def cgroup_fd(tmp_cgroup: Path) -> Iterator[int]:
    fd = os.open(tmp_cgroup, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def prog_fd() -> Iterator[int]:
    fd = bpf.prog_load(ALLOW, name="gpuiso_test", licence="GPL")
    yield fd
    os.close(fd)


def test_a_loaded_program_describes_itself(prog_fd: int) -> None:
    info = bpf.prog_info(prog_fd)
    assert info.type == bpf.BPF_PROG_TYPE_CGROUP_DEVICE
    assert info.name == "gpuiso_test"
    assert info.insns == ALLOW
    assert info.gpl_compatible
    assert info.map_ids == ()
    assert info.uid == os.getuid()
    assert info.load_time > 0
    assert len(bytes.fromhex(info.tag)) == 8
    assert bpf.prog_info(prog_fd, insns=False).insns is None
    again = bpf.prog_get_fd_by_id(info.id)
    assert bpf.prog_info(again).tag == info.tag
    os.close(again)
    assert not os.get_inheritable(prog_fd)


def test_a_licence_that_is_not_gpl_shows() -> None:
    fd = bpf.prog_load(ALLOW, licence="Apache-2.0")
    assert not bpf.prog_info(fd).gpl_compatible
    os.close(fd)


def test_the_verifier_says_why_it_refuses() -> None:
    with pytest.raises(bpf.VerifierError, match=r"bpf\(PROG_LOAD\)") as caught:
        bpf.prog_load(bytes.fromhex("b700000005000000") + EXIT)
    assert caught.value.errno == errno.EINVAL
    assert "R0" in caught.value.log


def test_programs_of_a_cgroup(cgroup_fd: int, prog_fd: int) -> None:
    assert bpf.prog_query(cgroup_fd).ids == ()
    bpf.prog_attach(cgroup_fd, prog_fd)
    info = bpf.prog_info(prog_fd)
    assert bpf.prog_query(cgroup_fd) == bpf.Query((info.id,), bpf.BPF_F_ALLOW_MULTI)
    assert info.id in bpf.prog_query(cgroup_fd, effective=True).ids
    bpf.prog_detach(cgroup_fd, prog_fd)
    assert bpf.prog_query(cgroup_fd).ids == ()
    with pytest.raises(FileNotFoundError):
        bpf.prog_detach(cgroup_fd, prog_fd)


def test_replace_in_one_step(cgroup_fd: int, prog_fd: int) -> None:
    bpf.prog_attach(cgroup_fd, prog_fd)
    other = bpf.prog_load(DENY)
    flags = bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE
    bpf.prog_attach(cgroup_fd, other, flags=flags, replace_fd=prog_fd)
    assert bpf.prog_query(cgroup_fd).ids == (bpf.prog_info(other).id,)
    third = bpf.prog_load(ALLOW)
    with pytest.raises(FileNotFoundError):
        bpf.prog_attach(cgroup_fd, third, flags=flags, replace_fd=prog_fd)
    assert bpf.prog_query(cgroup_fd).ids == (bpf.prog_info(other).id,)
    bpf.prog_detach(cgroup_fd, other)
    os.close(other)
    os.close(third)


def test_a_full_cgroup_is_read_whole(cgroup_fd: int) -> None:
    """64 programs are the kernel's limit, and the room the first query has."""
    fds = [bpf.prog_load(ALLOW) for _ in range(65)]
    try:
        for fd in fds[:64]:
            bpf.prog_attach(cgroup_fd, fd)
        with pytest.raises(OSError, match="PROG_ATTACH") as caught:
            bpf.prog_attach(cgroup_fd, fds[64])
        assert caught.value.errno == errno.E2BIG
        assert bpf.prog_query(cgroup_fd).ids == tuple(bpf.prog_info(fd, insns=False).id for fd in fds[:64])
    finally:
        for fd in fds[:64]:
            bpf.prog_detach(cgroup_fd, fd)
        for fd in fds:
            os.close(fd)


def test_more_effective_programs_than_the_first_query_has_room_for(tmp_cgroup: Path) -> None:
    fds: list[tuple[int, int]] = []
    directory = tmp_cgroup
    try:
        for level in range(3):
            directory = directory / f"level{level}"
            directory.mkdir()
            cgroup_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            for _ in range(30):
                fd = bpf.prog_load(ALLOW)
                fds.append((cgroup_fd, fd))
                bpf.prog_attach(cgroup_fd, fd)
        ids = bpf.prog_query(fds[-1][0], effective=True).ids
        assert {bpf.prog_info(fd, insns=False).id for _, fd in fds} <= set(ids)
    finally:
        for cgroup_fd, fd in fds:
            bpf.prog_detach(cgroup_fd, fd)
            os.close(fd)
        for cgroup_fd in {cgroup_fd for cgroup_fd, _ in fds}:
            os.close(cgroup_fd)


def test_what_is_gone_is_enoent() -> None:
    fd = bpf.prog_load(ALLOW)
    gone = bpf.prog_info(fd).id
    os.close(fd)
    with pytest.raises(FileNotFoundError, match="PROG_GET_FD_BY_ID"):
        _ask_until_gone(gone)
    with pytest.raises(FileNotFoundError, match="MAP_GET_FD_BY_ID"):
        bpf.map_get_fd_by_id(0x7FFFFFFF)


def _ask_until_gone(prog_id: int) -> None:
    """The kernel frees an id a moment after the last descriptor is closed."""
    for _ in range(1000):
        os.close(bpf.prog_get_fd_by_id(prog_id))


def test_asking_what_is_no_cgroup(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="PROG_QUERY") as caught:
        bpf.prog_query(fd)
    assert caught.value.errno == errno.EBADF
    os.close(fd)


def test_maps_are_read() -> None:
    fd = map_create(HASH, key_size=4, value_size=12, max_entries=8, name="numbers")
    info = bpf.map_info(fd)
    assert (info.type, info.key_size, info.value_size, info.max_entries) == (HASH, 4, 12, 8)
    assert info.name == "numbers"
    map_update(fd, b"gpu0", b"abcdefghijkl")
    map_update(fd, b"gpu1", b"ABCDEFGHIJKL")
    again = bpf.map_get_fd_by_id(info.id)
    assert bpf.map_lookup_elem(again, b"gpu0", info) == b"abcdefghijkl"
    assert bpf.map_lookup_elem(again, b"gpu9", info) is None
    keys, key = [], bpf.map_get_next_key(again, None, info)
    while key is not None:
        keys.append(key)
        key = bpf.map_get_next_key(again, key, info)
    assert sorted(keys) == [b"gpu0", b"gpu1"]
    with pytest.raises(OSError, match="needs 4 bytes"):
        bpf.map_lookup_elem(again, b"gpu", info)
    os.close(again)
    os.close(fd)


def test_a_per_cpu_map_has_no_one_value() -> None:
    fd = map_create(6, key_size=4, value_size=8, max_entries=1)
    with pytest.raises(OSError, match="per-CPU"):
        bpf.map_lookup_elem(fd, bytes(4), bpf.map_info(fd))
    os.close(fd)


def test_array_maps_have_every_key() -> None:
    fd = map_create(ARRAY, key_size=4, value_size=8, max_entries=2)
    info = bpf.map_info(fd)
    assert bpf.map_lookup_elem(fd, (1).to_bytes(4, "little"), info) == bytes(8)
    assert bpf.map_lookup_elem(fd, (2).to_bytes(4, "little"), info) is None
    os.close(fd)


def test_without_privilege_instructions_are_withheld_and_queries_refused(cgroup_fd: int, prog_fd: int) -> None:
    pid = os.fork()
    if pid == 0:
        status = 4
        with contextlib.suppress(OSError):
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            info = bpf.prog_info(prog_fd)
            status = 0 if info.insns is None and info.name == "gpuiso_test" else 1
        with contextlib.suppress(PermissionError):
            bpf.prog_query(cgroup_fd)
            status |= 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
