# SPDX-License-Identifier: Apache-2.0
"""What a decision of a device program costs, and what it costs to apply rules."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.registry import NotMeasurable, Row, topic
from gpuiso.apply.calls import Calls
from gpuiso.apply.engine import carry_out
from gpuiso.apply.plan_cgroup import plan_cgroup
from gpuiso.apply.state import State
from gpuiso.apply.target import find_cgroup
from gpuiso.devfilter import insn as op
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import Insn, pack
from gpuiso.devfilter.interpret import Access
from gpuiso.host.live import LiveHost
from gpuiso.kernel import bpf
from gpuiso.policy.document import parse_policy
from gpuiso.policy.resolve import resolve
from gpuiso.policy.rule import READ, WRITE, Rule
from tests import tiers
from tests.devfilter.asking import asking
from tests.devfilter.layouts import runc

SIZES = (4, 16, 64, 512, 4096)
ACCESSES = 4000  # of one round, spread over the rules
# The bars of device decisions: the most that ours may be of runc's.
BARS = {16: 1.0, 512: 0.25}
_HOME = "/root/bench"  # in the lab
_NOTHING, _RUNC, _OURS = "nothing", "runc's layout", "gpuiso"
_RETURN = (Insn(op.ALU64 | op.MOV, 0, imm=1), Insn(op.JMP | op.EXIT))
POLICY = "allow default-nodes\nallow c 195:0 rw\nallow c 195:1 rw\nallow c 195:255 rw\n"


@topic("decision", "nanoseconds a decision of a device program takes in the kernel, ours beside one laid out as runc's")
def decision(rounds: int) -> list[Row]:
    _need("kernel")
    rows = []
    stats = bpf.enable_stats()
    try:
        for size in SIZES:
            rules = _rules(size)
            programs = {_NOTHING: _RETURN, _RUNC: runc(rules), _OURS: compile_rules(rules)}
            samples = _decisions(programs, _accesses(rules), rounds)
            floor = statistics.median(samples.pop(_NOTHING))
            middle = {name: statistics.median(values) - floor for name, values in samples.items()}
            for name, values in samples.items():
                ours = name == _OURS
                rows.append(
                    Row(
                        f"{name}, {size} rules",
                        "ns",
                        tuple(value - floor for value in values),
                        peer=f"{_RUNC}, as many rules" if ours else None,
                        ratio=middle[_OURS] / middle[_RUNC] if ours else None,
                        bar=BARS.get(size) if ours else None,
                        bar_on_ratio=True,
                        note=f"{len(programs[name])} instructions; less {floor:.0f} ns of a program that only returns",
                    )
                )
    finally:
        os.close(stats)
    return rows


def _rules(size: int) -> list[Rule]:
    """Allowed devices in runc's order: usual nodes, GPUs, and others above them; without a test of the access."""
    usual = [(1, minor) for minor in (3, 5, 7, 8, 9)] + [(195, minor) for minor in (0, 1, 2, 3, 255)]
    chosen = usual[:: max(1, len(usual) * 2 // size)][:size]
    # No two next to each other: nothing can be said of a range.
    others = ((240 + number // 64, number % 64 * 2) for number in range(size - len(chosen)))
    numbers = sorted((*chosen, *others))
    return [Rule(True, "c", major, minor, "rwm") for major, minor in numbers]


def _accesses(rules: Sequence[Rule]) -> list[Access]:
    """As many as ACCESSES, spread evenly over the rules, and one in ten that no rule allows."""
    allowed = [Access("c", rule.major or 0, rule.minor or 0, READ | WRITE) for rule in rules]
    every = max(1, len(allowed) // 256)
    mixed = allowed[::every]
    mixed += [Access("c", 238, number, READ | WRITE) for number in range(max(1, len(mixed) // 9))]
    return [mixed[number % len(mixed)] for number in range(ACCESSES)]


def _decisions(
    programs: dict[str, Sequence[Insn]], asked: Sequence[Access], rounds: int
) -> dict[str, tuple[float, ...]]:
    """Nanoseconds a run, one sample a round and program; the programs take turns."""
    samples: dict[str, list[float]] = {name: [] for name in programs}
    with _cgroup() as cgroup, asking(asked, cgroup=cgroup) as ask:
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        loaded = {name: bpf.prog_load(pack(program)) for name, program in programs.items()}
        try:
            for number in range(rounds + 1):
                for name, program in loaded.items():
                    bpf.prog_attach(directory, program)
                    before = bpf.prog_info(program, insns=False)
                    ask()
                    after = bpf.prog_info(program, insns=False)
                    bpf.prog_detach(directory, program)
                    runs = after.run_cnt - before.run_cnt
                    if number and runs:  # the first round warms up
                        samples[name].append((after.run_time_ns - before.run_time_ns) / runs)
        finally:
            for fd in (directory, *loaded.values()):
                os.close(fd)
    return {name: tuple(values) for name, values in samples.items()}


@topic("apply", "applying rules: in this process, and in a lab beside what else changes device rules there")
def apply(rounds: int) -> list[Row]:
    _need("kernel")
    rows = [_in_process(rounds)]
    if tiers.reason("lab") is None:
        rows += _in_lab(rounds)
    return rows


def _in_process(rounds: int) -> Row:
    calls, host = Calls(), LiveHost()
    with _cgroup() as cgroup, TemporaryDirectory() as run:
        target = find_cgroup(host, calls, str(cgroup))
        plan = plan_cgroup(calls, target, resolve(parse_policy(POLICY), host))
        state = State(Path(run))
        carry_out(plan, state=state, calls=calls)
        samples = _timed(rounds, lambda: carry_out(plan, state=state, calls=calls))
    return Row("library: a cgroup of our own", "s", samples, note="planned before; journalled, verified, tried")


def _in_lab(rounds: int) -> list[Row]:
    from tests.lab.host import Lab
    from tests.lab.images import bundle

    with Lab.boot("trixie") as lab:
        lab.put(f"{_HOME}/gpu.rules", POLICY.encode())
        own = "/system.slice/lab-shell.service/bench"
        unit = "bench.service"
        lab.run(["systemd-run", "--quiet", f"--unit={unit}", "sleep", "infinity"])
        bundle(lab, f"{_HOME}/bundle", ["sleep", "1000000"])
        lab.sh(f"cd {_HOME}/bundle && runc run --detach bench </dev/null >/dev/null 2>&1")
        lab.put(f"{_HOME}/resources.json", b'{"pids": {"limit": 0}}')
        allow = [f"DeviceAllow=/dev/char/195:{minor} rw" for minor in (0, 1, 255)]
        # The lab's own copy has no bytecode; a package that is installed has.
        lab.sh(
            'mkdir -p "$1/lib"; cp -r /opt/gpuiso/gpuiso /opt/site/. "$1/lib"; python3 -m compileall -q "$1/lib" >&2',
            _HOME,
        )
        start = f"import sys; sys.path.insert(0, '{_HOME}/lib'); from gpuiso.cli.main import main; sys.exit(main())"
        gpuiso = ["python3", "-I", "-c", start, "rules", "apply", f"{_HOME}/gpu.rules"]
        commands = {
            "python3 -I -S -c pass": ["python3", "-I", "-S", "-c", "pass"],
            "systemctl set-property": ["systemctl", "set-property", "--runtime", unit, "DeviceAllow=", *allow],
            "runc update": ["runc", "update", "--resources", f"{_HOME}/resources.json", "bench"],
            "gpuiso rules apply --unit": [*gpuiso, "--unit", unit],
            "gpuiso rules apply --cgroup": [*gpuiso, "--cgroup", own, "--create"],
        }
        samples: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, argv in commands.items():
                taken = _timed(1, lambda argv=argv: lab.run(argv))  # type: ignore[misc]
                samples[name] += taken if number else ()
        lab.run(["runc", "delete", "--force", "bench"])
    peer = "systemctl set-property"
    middle = {name: statistics.median(values) for name, values in samples.items()}
    return [
        Row(
            f"process in a lab: {name}",
            "s",
            tuple(values),
            peer=f"process in a lab: {peer}" if name.startswith("gpuiso") else None,
            ratio=middle[name] / middle[peer] if name.startswith("gpuiso") else None,
        )
        for name, values in samples.items()
    ]


def _timed(rounds: int, act: Callable[[], object]) -> tuple[float, ...]:
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        act()
        samples.append(time.perf_counter() - start)
    return tuple(samples)


@contextmanager
def _cgroup() -> Iterator[Path]:
    mount = tiers.cgroup2_mount()
    if mount is None:
        raise NotMeasurable("no cgroup2 mount")
    path = mount / f"gpuiso-bench-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        with Calls().cgroup(str(mount), "/") as directory:
            Calls().rmdir(directory, path.name)


def _need(tier: str) -> None:
    if (why := tiers.reason(tier)) is not None:
        raise NotMeasurable(why)
