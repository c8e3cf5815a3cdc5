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

_PROGRAM = "import threading, socket; t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()"


@pytest.mark.parametrize("profile", [False, True])
def test_a_program_with_threads_runs(profile: bool, tmp_path: Path) -> None:
    interpreter = os.path.realpath(sys.executable)
    config = base_config([interpreter, "-I", "-S", "-c", _PROGRAM])
    home = Path(sys.base_prefix)
    config["mounts"].append({"destination": str(home), "type": "bind", "source": str(home), "options": ["rbind", "ro"]})
    config["root"]["readonly"] = False  # the interpreter may be anywhere: its mount point is made
    if profile:
        config["linux"]["seccomp"] = compute_profile()
    done = run_in_container(tmp_path / "bundle", config)
    assert (done.returncode, done.stdout) == (0, "thread\n"), done.stderr
