# SPDX-License-Identifier: Apache-2.0
"""CUDA in a container under the compute seccomp profile: work goes on, what work does not need is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gpuiso.cdi.cache import load
from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Options, generate
from gpuiso.cdi.inject import inject
from gpuiso.gpu.model import Inventory
from gpuiso.host.live import LiveHost
from tests.cdi.host_container import base_config, compute_profile, needs_runtime, run_in_container
from tests.gpu.place import CU_INIT
from tests.tiers import requires

pytestmark = [requires("gpu"), needs_runtime]

# Registers of a GPU by an escape that no CUDA program needs (NV_ESC_RM_ACCESS_REGISTRY), and one that does not exist.
_ADMIN = """
import errno, fcntl, json, os
fd = os.open("/dev/nvidiactl", os.O_RDWR)
said = []
for number in (0xC040464D, 0xC01046FE):
    try:
        fcntl.ioctl(fd, number, bytearray(64))
        said.append("done")
    except OSError as error:
        said.append(errno.errorcode[error.errno])
print(json.dumps(said))
"""


def run(tmp_path: Path, code: str) -> str:
    """The output of Python code in a container with GPU 0 under the profile."""
    host = LiveHost()
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/nvidia.yaml").write_text(to_yaml(generate(host, Options(hooks="none")).spec))
    config = base_config([os.path.realpath(sys.executable), "-I", "-S", "-c", code])
    config = inject(host, load(host, (str(tmp_path / "cdi"),)), config, ["nvidia.com/gpu=0"])
    config["linux"]["seccomp"] = compute_profile()
    done = run_in_container(tmp_path / "bundle", config)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cuda_works_under_the_compute_profile(
    inventory: Inventory, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seen = json.loads(run(tmp_path, CU_INIT))
    record_property("note", f"cuInit {seen['cuInit']}, {len(seen['uuids'])} GPU")
    assert seen == {"cuInit": 0, "uuids": [inventory.of("nvidia")[0].uuid]}


def test_what_work_does_not_need_is_refused(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    said = json.loads(run(tmp_path, _ADMIN))
    record_property("note", ", ".join(said))
    assert said == ["EPERM", "EPERM"]
