# SPDX-License-Identifier: Apache-2.0
"""CDI specs: generating one, listing and checking 200 of them, injecting. In process, but for the peer."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.process import measure
from benchmarks.registry import Row, topic
from gpuiso.cdi.cache import load
from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Options, generate
from gpuiso.cdi.inject import apply_edits
from gpuiso.cdi.report import validate_paths
from gpuiso.host import open_host

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "hosts" / "h200-x4"
FILES = 200
PEER = "nvidia-ctk cdi generate"


@topic("cdi", f"generate a CDI spec from a record, list and validate {FILES} files, inject")
def cdi(rounds: int) -> list[Row]:
    spec = generate(open_host(str(EXAMPLE)), Options(hooks="nvidia")).spec
    text = to_yaml(spec)
    edits = spec.devices[0].container_edits + spec.container_edits
    config: dict[str, Any] = {"process": {}, "mounts": [{"destination": f"/mount/{n}"} for n in range(20)]}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(FILES):
            Path(directory, f"{number}.yaml").write_text(text.replace("nvidia.com/gpu", f"nvidia.com/gpu{number}", 1))
        rows = [
            Row(
                "generate from h200-x4, text included",
                "s",
                timed(rounds, lambda: to_yaml(generate(open_host(str(EXAMPLE)), Options(hooks="nvidia")).spec)),
            ),
            Row(
                f"list {FILES} files, {len(text) >> 10} KiB each",
                "s",
                timed(rounds, lambda: load(open_host(), (directory,))),
            ),
            Row(
                f"validate {FILES} files, JSON Schema and warnings included",
                "s",
                timed(rounds, lambda: validate_paths(open_host(), (directory,))),
            ),
            Row(
                f"inject {len(edits.mounts)} mounts and {len(edits.device_nodes)} nodes",
                "s",
                timed(rounds, lambda: apply_edits(open_host(str(EXAMPLE)), edits, config)),
            ),
        ]
    return rows + beside_the_peer(rounds)


def timed(rounds: int, work: Callable[[], object]) -> tuple[float, ...]:
    """Seconds of each round, after one that is not counted."""
    work()
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return tuple(samples)


def beside_the_peer(rounds: int) -> list[Row]:
    """Whole processes on this machine's own GPUs; nothing where there are none, or no peer."""
    program = Path(sys.executable).with_name("gpuiso")
    peer = shutil.which("nvidia-ctk")
    if peer is None or not program.exists() or not Path("/dev/nvidiactl").exists():
        return []
    ours = "gpuiso cdi generate"
    runs = measure({PEER: (peer, "cdi", "generate"), ours: (str(program), "cdi", "generate")}, rounds)
    ratio = runs[ours].median / runs[PEER].median
    return [
        Row(PEER, "s", runs[PEER].seconds),
        Row(ours, "s", runs[ours].seconds, peer=PEER, ratio=ratio, bar=1.0, bar_on_ratio=True),
    ]
