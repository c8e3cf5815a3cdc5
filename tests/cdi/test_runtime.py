# SPDX-License-Identifier: Apache-2.0
"""A runtime starts what inject wrote: the asked node is there and opens, another one does not."""

from __future__ import annotations

from pathlib import Path

from gpuiso.cdi.inject import apply_edits
from gpuiso.cdi.spec import ContainerEdits, DeviceNode
from gpuiso.host.live import LiveHost
from tests.cdi.host_container import base_config, needs_runtime, run_in_container
from tests.tiers import requires

# 1:11 is the kernel log, which no runtime gives by itself.
LOOK = r"""
echo /dev/*
head -c 4 /dev/asked | od -An -tx1
mknod /tmp/other c 1 11
(: </tmp/other) 2>/dev/null && echo opens || echo "does not open"
echo "$ASKED"
"""


@requires("kernel")
@needs_runtime
def test_a_container_has_what_was_injected(tmp_path: Path) -> None:
    edits = ContainerEdits(env=("ASKED=yes",), device_nodes=(DeviceNode("/dev/asked", host_path="/dev/zero"),))
    config = apply_edits(LiveHost(), edits, base_config(["sh", "-c", LOOK]))
    done = run_in_container(tmp_path / "bundle", config)
    assert done.returncode == 0, done.stderr
    listing, data, other, environment = done.stdout.splitlines()
    assert "/dev/asked" in listing.split()
    assert data.split() == ["00"] * 4
    assert other == "does not open"
    assert environment == "yes"
