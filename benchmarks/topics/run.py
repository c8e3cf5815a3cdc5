# SPDX-License-Identifier: Apache-2.0
"""What ``gpuiso run`` adds to the start of a program, beside ``systemd-run --scope``: whole processes, in a lab."""

from __future__ import annotations

import statistics

from benchmarks.registry import NotMeasurable, Row, topic

PLAIN = "plain exec"
PEER = "systemd-run --scope"
_HOME = "/root/bench-run"
_PYTHON = "/usr/bin/python3"
_START = (
    f"import sys; sys.path.insert(0, '{_HOME}'); import gpuiso.host; from tests.lab_checks.examine import LabHost; "
    "gpuiso.host.open_host = lambda record=None: LabHost(); from gpuiso.cli.main import main; sys.exit(main())"
)
_GPUISO = [_PYTHON, "-I", "-c", _START, "run"]
_TRUE = ["--", "/usr/bin/true"]
COMMANDS = {
    PLAIN: ["/usr/bin/true"],
    "python3 -I -S -c pass": [_PYTHON, "-I", "-S", "-c", "pass"],
    PEER: ["/usr/bin/systemd-run", "--scope", "--quiet", "--collect", "/usr/bin/true"],
    "gpuiso --version": [*_GPUISO[:-1], "--version"],
    "gpuiso run --gpus none": [*_GPUISO, "--gpus", "none", *_TRUE],
    "gpuiso run --gpus 1": [*_GPUISO, "--gpus", "1", *_TRUE],
    "gpuiso run --gpus 1 --private-dev": [*_GPUISO, "--gpus", "1", "--private-dev", *_TRUE],
}


@topic("run", "from start to end of /usr/bin/true, each in a scope of its own")
def run(rounds: int) -> list[Row]:
    from tests import tiers
    from tests.lab.host import Lab

    why = tiers.reason("lab")
    if why is not None:
        raise NotMeasurable(f"no lab: {why}")
    with Lab.boot() as lab:
        # The lab's own copy has no bytecode; a package that is installed has.
        lab.sh(
            'mkdir -p "$1/tests"; cp -r /opt/gpuiso/gpuiso /opt/site/. "$1"; cp -r /opt/gpuiso/tests/__init__.py '
            '/opt/gpuiso/tests/lab_checks "$1/tests"; python3 -m compileall -q "$1" >&2',
            _HOME,
        )
        lab.run(COMMANDS["gpuiso run --gpus 1"], cgroup="/init.scope")
        commands = "\n".join("\0".join(argv) for argv in COMMANDS.values())
        argv = [_PYTHON, "-I", "-S", "/opt/gpuiso/benchmarks/launcher.py", str(rounds)]
        printed = lab.run(argv, input=commands, cgroup="/init.scope", timeout=600).stdout
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    peaks: dict[str, float] = {}
    for line in printed.splitlines():
        index, spent, peak, status = map(int, line.split())
        name = list(COMMANDS)[index]
        if status != 0:
            raise NotMeasurable(f"{name} ended with {status}")
        seconds[name].append(spent / 1e9)
        peaks[name] = max(peaks.get(name, 0.0), peak / 1024)
    peer = statistics.median(seconds[PEER])
    return [
        Row(
            name,
            "s",
            tuple(samples),
            peer=None if name in (PLAIN, PEER) else PEER,
            ratio=None if name in (PLAIN, PEER) else statistics.median(samples) / peer,
            note=f"peak {peaks[name]:.0f} MiB",
        )
        for name, samples in seconds.items()
    ]
