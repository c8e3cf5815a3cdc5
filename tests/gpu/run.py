# SPDX-License-Identifier: Apache-2.0
"""Runs every test that needs a GPU and prints a table: ``python -m tests.gpu.run [--write DIRECTORY] [PYTEST ARGS]``.

With ``--write`` the table is also a Markdown file there, named by date and driver, to be kept under tests/gpu/results.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from gpuiso import __version__
from gpuiso.gpu.inventory import build_inventory
from gpuiso.host.live import LiveHost


class Table:
    """A pytest plugin that collects one row a test."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            name = report.nodeid.removeprefix("tests/gpu/").replace("|", "/")
            note = "; ".join(str(value) for key, value in report.user_properties if key == "note")
            if report.skipped and isinstance(report.longrepr, tuple):
                note = report.longrepr[2]
            elif report.failed:
                note = (str(report.longrepr).strip().splitlines() or [""])[-1]
            row = f"| {name} | {report.outcome} | {report.duration:.2f} | {note.replace('|', '/')} |"
            self.rows.append(row)
            print(f"\n{row}", flush=True)  # a run that is cut short has told what it knew

    def markdown(self) -> str:
        return "\n".join(["| test | result | seconds | note |", "| --- | --- | --- | --- |", *self.rows]) + "\n"


def heading(seconds: float) -> str:
    """What the table was measured on."""
    host = LiveHost()
    inventory = build_inventory(host)
    gpus = ", ".join(f"{gpu.name}" for gpu in inventory.of("nvidia"))
    flavour = "open" if inventory.open_modules else "proprietary"
    return (
        f"# GPU tests, {time.strftime('%Y-%m-%d')}\n\n"
        f"gpuiso {__version__}; driver {inventory.driver_version} ({flavour} modules), CUDA {inventory.cuda_version}; "
        f"GPUs: {gpus}; kernel {host.kernel}; Python {sys.version.split()[0]}; {seconds:.0f} s in all.\n\n"
    )


def main(arguments: list[str]) -> int:
    """Returns pytest's exit code."""
    directory = None
    if arguments[:1] == ["--write"]:
        directory = Path(arguments[1])
        arguments = arguments[2:]
    table = Table()
    started = time.monotonic()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).parent), *arguments], plugins=[table])
    text = heading(time.monotonic() - started) + table.markdown()
    print(text)
    if directory is not None:
        driver = build_inventory(LiveHost()).driver_version
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{time.strftime('%Y-%m-%d')}-driver-{driver}.md").write_text(text)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
