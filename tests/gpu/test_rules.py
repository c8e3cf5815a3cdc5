# SPDX-License-Identifier: Apache-2.0
"""Rules on a running tree: a GPU is denied, and what CUDA sees in a new child is the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.make_plan import make_plan
from gpuiso.apply.remove import remove
from gpuiso.apply.state import State
from gpuiso.apply.target import find_cgroup
from gpuiso.gpu.model import Inventory
from gpuiso.host.live import LiveHost
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import resolve
from tests.gpu.place import CU_INIT
from tests.tiers import cgroup2_mount, requires

pytestmark = requires("gpu")


def test_a_gpu_is_denied_to_a_running_tree(
    two_gpus: Inventory, tmp_cgroup: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    uuids = [str(gpu.uuid) for gpu in two_gpus.of("nvidia")]
    mount = cgroup2_mount()
    assert mount is not None
    name, calls, state = f"/{tmp_cgroup.relative_to(mount)}", Calls(), State(tmp_path / "run")
    script = f'echo 0 >{tmp_cgroup}/cgroup.procs; while read -r line; do "$@" </dev/null; done'
    tree = subprocess.Popen(
        ["sh", "-c", script, "sh", sys.executable, "-I", "-S", "-c", CU_INIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tree.stdin is not None
    assert tree.stdout is not None

    def child_sees() -> dict[str, object]:
        assert tree.stdin is not None
        assert tree.stdout is not None
        tree.stdin.write("go\n")
        tree.stdin.flush()
        seen: dict[str, object] = json.loads(tree.stdout.readline())
        return seen

    try:
        assert child_sees() == {"cuInit": 0, "uuids": uuids}
        policy = resolve(parse_policy("gpuiso: 1\ndefault: allow\ndevices:\n- deny gpu 1\n"), LiveHost())
        target = find_cgroup(LiveHost(), calls, name)
        started = time.monotonic()
        carry_out(make_plan(LiveHost(), calls, target, policy), state=state, calls=calls)
        spent = time.monotonic() - started
        assert child_sees() == {"cuInit": 0, "uuids": [uuids[0], *uuids[2:]]}
        remove(find_cgroup(LiveHost(), calls, name), state=state, calls=calls)
        assert child_sees() == {"cuInit": 0, "uuids": uuids}
    finally:
        tree.stdin.close()
        tree.stdout.close()
        tree.wait(30)
    seen = f"{len(uuids) - 1} of {len(uuids)}"
    record_property("note", f"applied and verified in {1000 * spent:.0f} ms; a new child sees {seen}")
