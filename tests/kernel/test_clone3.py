# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import select
from pathlib import Path

import pytest

from gpuiso.kernel.clone3 import clone3
from tests.tiers import requires


def test_a_child_with_a_pidfd() -> None:
    pid, pidfd = clone3()
    if pid == 0:
        os._exit(7)
    assert not os.get_inheritable(pidfd)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(10_000)
    os.close(pidfd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@requires("kernel")
def test_a_child_starts_inside_the_cgroup(tmp_cgroup: Path) -> None:
    cgroup_fd = os.open(tmp_cgroup, os.O_PATH | os.O_DIRECTORY)
    reader, writer = os.pipe()
    pid, pidfd = clone3(cgroup_fd=cgroup_fd)
    if pid == 0:
        os.write(writer, Path("/proc/self/cgroup").read_bytes())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(pid, 0)
    os.close(pidfd)
    os.close(cgroup_fd)
    assert f"0::/{tmp_cgroup.name}" in lines


def test_what_is_no_cgroup_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="clone3") as caught:
        clone3(cgroup_fd=fd)
    assert caught.value.errno == errno.EBADF
    os.close(fd)
