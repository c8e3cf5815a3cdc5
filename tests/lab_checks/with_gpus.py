# SPDX-License-Identifier: Apache-2.0
"""Runs in a lab: the command line, as if the lab had two GPUs.

python3 -m tests.lab_checks.with_gpus run --gpus 1 -- env
"""

from __future__ import annotations

import sys

import gpuiso.host
from gpuiso.cli.main import main
from gpuiso.host.protocol import Host
from tests.lab_checks.examine import LabHost


def _open_host(record: str | None = None) -> Host:
    return LabHost()


if __name__ == "__main__":
    gpuiso.host.open_host = _open_host
    sys.exit(main())
