# SPDX-License-Identifier: Apache-2.0
"""The map while two processes work, each on a GPU of its own: it shows exactly that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gpuiso.doctor.map.build import build_map
from gpuiso.doctor.map.model import Workload
from gpuiso.gpu.model import Inventory
from gpuiso.host.live import LiveHost
from tests.gpu.test_govern import workloads
from tests.tiers import requires

pytestmark = requires("gpu")


def test_two_processes_on_two_gpus(two_gpus: Inventory, record_property: Callable[[str, object], None]) -> None:
    first, second = (str(gpu.uuid) for gpu in two_gpus.of("nvidia")[:2])
    with workloads(("one", first, ["2048"]), ("two", second, ["2048"])) as (one, two):
        started = time.monotonic()
        shown = build_map(LiveHost(nvml_deadline=30))
        spent = time.monotonic() - started
        rows = {name: _row(shown.workloads, work.directory) for name, work in (("one", one), ("two", two))}
    for name, place in (("one", 0), ("two", 1)):
        own, other = rows[name].cells[place], rows[name].cells[1 - place]
        assert (own.may_open, own.selected) == ("allow", True)
        assert own.open is not None
        assert own.open > 0
        assert own.memory is not None
        assert own.memory > 100 << 20
        assert (other.selected, other.memory or 0) == (False, 0)
        # Nothing but the environment keeps it from the other GPU: that is what the map is for.
        assert other.state == "leak"
    held = {name: [(cell.memory or 0) >> 20 for cell in row.cells] for name, row in rows.items()}
    record_property("note", f"MiB held {held}; {spent:.2f} s")


def _row(workloads: tuple[Workload, ...], directory: Path) -> Workload:
    (row,) = (w for w in workloads if w.cgroup is not None and w.cgroup.endswith(directory.name))
    return row
