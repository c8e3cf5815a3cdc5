# SPDX-License-Identifier: Apache-2.0
"""The container that GPU tests run in, under the seccomp profile they use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cdi.host_container import base_config, compute_profile, needs_runtime, run_in_container
from tests.tiers import requires

pytestmark = [requires("kernel"), needs_runtime]

# What libcuda does of this kind: threads, an abstract socket for descriptors (cuInit gives 304 without), a memfd.
_PROGRAM = """
import os, socket, threading
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
    listening.bind(chr(0) + f"cuda-uvmfd-test-{os.getpid()}")
    listening.listen()
os.close(os.memfd_create("cuda"))
os.close(os.eventfd(0))
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
"""


@pytest.mark.parametrize("profile", [False, True])
def test_what_the_driver_library_asks_of_the_kernel_is_let_through(profile: bool, tmp_path: Path) -> None:
    interpreter = os.path.realpath(sys.executable)
    config = base_config([interpreter, "-I", "-S", "-c", _PROGRAM])
    home = Path(sys.base_prefix)
    config["mounts"].append({"destination": str(home), "type": "bind", "source": str(home), "options": ["rbind", "ro"]})
    config["root"]["readonly"] = False  # the interpreter may be anywhere: its mount point is made
    if profile:
        config["linux"]["seccomp"] = compute_profile()
    done = run_in_container(tmp_path / "bundle", config)
    assert (done.returncode, done.stdout) == (0, "thread\n"), done.stderr
