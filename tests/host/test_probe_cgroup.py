# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuiso.errors import Unknown
from gpuiso.host.probe_cgroup import Asked, probe_cgroup
from gpuiso.host.process_tree import descendants, read_cgroup, read_processes
from tests.devfilter.asking import attached
from tests.devfilter.layouts import runc
from tests.tiers import requires

ASKED: list[Asked] = [("c", 1, 3, 6), ("c", 1, 3, 2), ("c", 195, 0, 4), ("b", 8, 0, 2), ("c", 1, 3, 1), ("c", 1, 3, 0)]


@requires("kernel")
def test_accesses_from_inside(tmp_cgroup: Path, tmp_path: Path) -> None:
    from gpuiso.devfilter.insn import pack
    from gpuiso.policy.parse import parse_rules

    directory = os.open(tmp_cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert probe_cgroup(ASKED, cgroup=directory, scratch=str(tmp_path)) == (True,) * len(ASKED)
        with attached(tmp_cgroup, pack(runc(parse_rules("allow c 1:3 rw\nallow c 195:0 r")))):
            answers = probe_cgroup(ASKED, cgroup=directory, scratch=str(tmp_path))
        assert answers == (True, True, False, False, False, True)
        assert list(tmp_path.iterdir()) == []
        (tmp_cgroup / "cgroup.freeze").write_text("1")
        with pytest.raises(Unknown, match="it may be frozen"):
            probe_cgroup(ASKED, cgroup=directory, scratch=str(tmp_path))
        (tmp_cgroup / "cgroup.freeze").write_text("0")
        while (tmp_cgroup / "cgroup.procs").read_text():
            time.sleep(0.01)
        with pytest.raises(Unknown, match="no child can be made there"):
            probe_cgroup(ASKED, cgroup=os.open(tmp_path, os.O_RDONLY), scratch=str(tmp_path))
    finally:
        os.close(directory)


def test_a_tree_of_processes() -> None:
    code = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        tree = descendants(read_processes(), process.pid)
        assert [entry.pid for entry in tree] == sorted(pids, key=lambda pid: pid != process.pid)
        assert tree[1].ppid == process.pid
        assert tree[1].start >= tree[0].start
        assert read_cgroup(process.pid) == read_cgroup(os.getpid())
        for pid in reversed(pids):
            os.kill(pid, 9)
        process.wait()
    assert descendants(read_processes(), process.pid) == []
    assert read_cgroup(process.pid) is None
