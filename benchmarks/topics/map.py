# SPDX-License-Identifier: Apache-2.0
"""``gpuiso map`` on hosts that grow: a record of containers, and cgroups of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.process import measure
from benchmarks.registry import NotMeasurable, Row, topic
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.policy.parse import parse_rules

GPUS = 8
SIZES = (250, 1000)
BAR = 3.0  # seconds for the largest
PEAK = 150  # MiB
MOUNTS = 40  # lines of a container's mount table, as Docker and Kubernetes make them

_RULES = "allow c 1:* rwm\nallow c 5:* rwm\nallow c 136:* rwm\nallow c 195:255 rw\nallow c 238:* rw\n"
_STATUS = """Name:\ttrain
State:\tS (sleeping)
PPid:\t1
Uid:\t0\t0\t0\t0
Gid:\t0\t0\t0\t0
Groups:\t0
NSpid:\t{pid}\t1
CapEff:\t00000000a80425fb
Seccomp:\t2
NoNewPrivs:\t0
"""


@topic("map", "gpuiso map of recorded hosts with containers that carry device programs, a GPU each")
def containers(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="gpuiso-bench-") as scratch:
        commands = {}
        for size in SIZES:
            for alike in (True, False):
                place = Path(scratch, f"{size}-{alike}")
                write_host(place, size, alike=alike)
                name = f"{size} containers, {'8 programs' if alike else 'a program each'}"
                commands[name] = (sys.executable, "-m", "gpuiso", "map", "--from", str(place), "--json")
        for name, argv in commands.items():
            complete(name, argv)
        runs = measure(commands, min(rounds, 5))
    small, large = SIZES
    rows = []
    for name, run in runs.items():
        peer = name.replace(str(large), str(small)) if name.startswith(str(large)) else None
        growth = None if peer is None else run.median / runs[peer].median
        bar = BAR if peer is not None else None
        rows.append(Row(name, "s", run.seconds, peer=peer, ratio=growth, bar=bar, note=linear(growth)))
        rows.append(Row(f"{name}: peak", "MiB", (run.peak_mib,), bar=PEAK if peer is not None else None))
    return rows


def linear(growth: float | None) -> str | None:
    small, large = SIZES
    return None if growth is None else f"{large / small:g} x as many"


def complete(name: str, argv: tuple[str, ...]) -> None:
    """Run once. Raises NotMeasurable unless every container is in the map with the one GPU that it was given."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    states = [sorted({cell["state"] for cell in workload["cells"]}) for workload in found["workloads"]]
    if len(states) != int(name.split()[0]) or any(state != ["closed", "ready"] for state in states):
        raise NotMeasurable(f"{name}: the map is wrong")


def write_host(place: Path, size: int, *, alike: bool) -> None:
    """A record: ``size`` containers with their own /dev and device program. ``alike``: as many programs as GPUs."""
    with _record(place) as (nodes, cgroups):
        for path in ("nvidiactl 195 255", "nvidia-uvm 238 0", *(f"nvidia{gpu} 195 {gpu}" for gpu in range(GPUS))):
            nodes.append(_node(f"/dev/{path}"))
        for number in range(size):
            pid, gpu = 1000 + number, number % GPUS
            cgroup = f"/system.slice/docker-{number:064x}.scope"
            rules = _RULES + f"allow c 195:{gpu} rw\n" + ("" if alike else f"allow c 300:{number} rw\n")
            program = pack(compile_rules(parse_rules(rules))).hex()
            entry = {"id": pid, "name": "", "tag": "", "attach_flags": 2, "insns": program}
            cgroups[cgroup] = {"device_programs": [entry]}
            _process(place / f"root/proc/{pid}", pid, gpu, cgroup)
            for path in ("nvidiactl 195 255", "nvidia-uvm 238 0", f"nvidia{gpu} 195 {gpu}"):
                nodes.append(_node(f"/proc/{pid}/root/dev/{path}"))
            nodes.append({"path": f"/proc/{pid}/ns/mnt", "type": "l", "target": f"mnt:[{4026540000 + number}]"})
            nodes.append({"path": f"/proc/{pid}/fd/0", "type": "l", "target": "/dev/null"})


@contextmanager
def _record(place: Path) -> Iterator[tuple[list[dict[str, object]], dict[str, object]]]:
    nodes: list[dict[str, object]] = []
    cgroups: dict[str, object] = {"/": {"device_programs": []}, "/system.slice": {"device_programs": []}}
    root = place / "root/proc"
    for gpu in range(GPUS):
        information = root / f"driver/nvidia/gpus/0000:{gpu:02x}:00.0/information"
        information.parent.mkdir(parents=True)
        information.write_text(f"GPU UUID: \t GPU-{gpu:08x}-0000-0000-0000-000000000000\nDevice Minor: \t {gpu}\n")
    (root / "devices").write_text("Character devices:\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n")
    yield nodes, cgroups
    header = {"format": "gpuiso-host/1", "kernel": "6.18.0", "cgroup_mode": "unified", "systemd": True}
    (place / "record.json").write_text(json.dumps(header))
    (place / "nodes.jsonl").write_text("".join(f"{json.dumps(node)}\n" for node in nodes))
    (place / "cgroups.json").write_text(json.dumps(cgroups))


def _process(directory: Path, pid: int, gpu: int, cgroup: str) -> None:
    table = "".join(
        f"{30 + n} 20 0:{n + 50} / /run/{n} rw,nosuid - tmpfs tmpfs rw,size=65536k\n" for n in range(MOUNTS)
    )
    files = {
        "status": _STATUS.format(pid=pid),
        "comm": "train\n",
        "environ": f"PATH=/usr/bin\0NVIDIA_VISIBLE_DEVICES={gpu}\0",
        "cgroup": f"0::{cgroup}\n",
        "mountinfo": f"20 1 0:40 / / rw - overlay overlay rw\n25 20 0:{pid} / /dev rw,nosuid - tmpfs tmpfs rw\n{table}",
    }
    os.makedirs(directory)
    for name, content in files.items():
        (directory / name).write_text(content)


def _node(line: str) -> dict[str, object]:
    path, major, minor = line.split()
    return {"path": path, "type": "c", "major": int(major), "minor": int(minor), "mode": "0666"}
