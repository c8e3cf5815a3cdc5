# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.examine_all RECORD``: what ``gpuiso doctor --all`` does, with the GPUs of a record.

All about processes, containers and cgroups comes from this machine; the GPUs, their driver and their nodes come from
the record, in every process's view, so that a machine without GPUs has as much to examine as one with.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from gpuiso.doctor.engine import examine
from gpuiso.host.live import LiveHost
from gpuiso.host.protocol import Host, Node
from gpuiso.host.recorded import RecordedHost

_OF_GPUS = re.compile(r"/proc/driver/.*|/proc/(?:devices|modules)|/sys/bus/pci(?:/.*)?|/sys/module/.*|/dev/nvidia.*")
_IN_VIEW = re.compile(r"/proc/\d+/root(/dev/nvidia.*)")


class WithGpus(LiveHost):
    """This machine with the GPUs of ``record``."""

    def __init__(self, record: RecordedHost) -> None:
        super().__init__()
        self._record = record

    def _source(self, path: str) -> Host | None:
        return self._record if _OF_GPUS.fullmatch(path) else None

    def read(self, path: str) -> bytes | None:
        source = self._source(path)
        return super().read(path) if source is None else source.read(path)

    def listdir(self, path: str) -> tuple[str, ...] | None:
        source = self._source(path)
        return super().listdir(path) if source is None else source.listdir(path)

    def lstat(self, path: str) -> Node | None:
        source = self._source(path)
        return super().lstat(path) if source is None else source.lstat(path)

    def stat(self, path: str) -> Node | None:
        super_node = super().stat(path)  # a real lookup in the view costs what it costs
        match = _IN_VIEW.fullmatch(path)
        if match is not None:
            return self._record.stat(match[1])
        source = self._source(path)
        return super_node if source is None else source.stat(path)

    def readlink(self, path: str) -> str | None:
        source = self._source(path)
        return super().readlink(path) if source is None else source.readlink(path)

    def nvml(self) -> dict[str, Any] | None:
        return self._record.nvml()

    def kernel_log(self) -> str:
        return self._record.kernel_log()


def main() -> None:
    report = examine(WithGpus(RecordedHost(sys.argv[1])), everything=True)
    json.dump(report.as_json(), sys.stdout)


if __name__ == "__main__":
    main()
