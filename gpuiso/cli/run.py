# SPDX-License-Identifier: Apache-2.0
"""``gpuiso run``: start a program on exactly the GPUs it was given."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from gpuiso.cli.numbers import seconds
from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import plain
from gpuiso.errors import NotPermitted, UsageError

if TYPE_CHECKING:
    from gpuiso.grants.units import Unit
    from gpuiso.launch.prepare import Options, Prepared
    from gpuiso.policy.document import Document
    from gpuiso.policy.limits import Bytes, GpuMax

__all__ = ["run"]


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")],
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus",
            metavar="SPEC",
            help="How many (2), or which: 0,3 · nvidia:0 · GPU-uuid · 0000:06:00.0 · mig:PROFILE · all · none.",
        ),
    ],
    gpu_max: Annotated[
        str | None, typer.Option("--gpu-max", metavar="QUOTA/PERIOD", help="Its GPU time, in µs: 50000/100000 is half.")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", metavar="BYTES", help="At most so much memory of each GPU: 20G.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="Device rules for all but GPUs, and limits.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Set a variable; may be repeated.")
    ] = None,
    slice_name: Annotated[
        str | None, typer.Option("--slice", metavar="SLICE", help="Its slice; without systemd the cgroup above it.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Its scope is gpuiso-NAME.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Run it as this user.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Become the program, or start it and return.")] = True,
    private_dev: Annotated[
        bool, typer.Option("--private-dev", help="Give it a /dev of its own with only its nodes.")
    ] = False,
    share: Annotated[
        bool, typer.Option("--share", help="Share GPUs with others who --share, and with programs that have no lease.")
    ] = False,
    wait_for_gpu: Annotated[
        float,
        typer.Option(
            "--wait-for-gpu", metavar="SECONDS", parser=seconds(0), help="Wait for GPUs, in the order of arrival."
        ),
    ] = 0.0,
    show: Annotated[bool, typer.Option("--print", help="Show what would be done, and do nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --print or --no-wait: print one JSON object.")] = False,
) -> int:
    """Run a program on exactly the GPUs it was given.

    GPUs are leased, so that two launches never get the same one; what the environment selects and what the kernel
    allows are the same set. The program runs in a scope (or cgroup) of its own whose device rules hold from its first
    instruction, and is the very process that was started here: signals, terminal, standard streams and exit status are
    its own. The lease ends when the last process of the scope does.

    \b
    Examples:
      gpuiso run --gpus 2 -- python train.py
      gpuiso run --gpus 0,3 --wait-for-gpu 3600 --user alice -- ./job.sh
      gpuiso run --gpus mig:1g.18gb --private-dev -- bash
      gpuiso run --gpus 1 --gpu-max 50000/100000 --no-wait -- ./server

    \b
    Exit codes: the program's own, 128+n in a shell if a signal ended it; and before it starts: 2 wrong usage;
    3 not permitted; 4 no such GPU, or not enough free ones; 5 not supported here; 7 failed and undone;
    126 the program cannot be run; 127 there is no such program.
    """
    if as_json and wait and not show:
        raise UsageError("--json goes with --print or --no-wait: otherwise the output is the program's own")
    from gpuiso.host import open_host
    from gpuiso.launch.prepare import Options, prepare
    from gpuiso.launch.start import become_program, start_program

    host = open_host(None)
    options = Options(
        command=tuple(command),
        gpus=gpus,
        gpu_max=_gpu_max(gpu_max),
        gpu_memory=_bytes(gpu_memory),
        policy=_policy(policy, user),
        variables=_variables(env or []),
        slice=slice_name,
        name=name,
        user=user,
        private_dev=private_dev,
        share=share,
        wait_for_gpu=wait_for_gpu,
    )
    prepared = prepare(host, options, os.environ)
    if show:
        _show(prepared, options, as_json=as_json)
        return 0
    held = prepared.take(lambda: open_host(None))
    start, notices = prepared.start(held, os.environ)
    for notice in notices:
        print(plain(f"gpuiso run: {notice}"), file=sys.stderr)
    if wait:
        sys.stdout.flush()
        sys.stderr.flush()
        become_program(start)
    pid = start_program(start)
    _started(pid, prepared, start.units, as_json=as_json)
    return 0


def _gpu_max(text: str | None) -> GpuMax | None:
    from gpuiso.policy.limits import parse_gpu_max

    try:
        return None if text is None else parse_gpu_max(text.replace("/", " "))
    except ValueError as error:
        raise UsageError(f"--gpu-max {text}: {error}") from error


def _bytes(text: str | None) -> Bytes | None:
    from gpuiso.policy.limits import parse_bytes

    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"--gpu-memory {text}: {error}") from error


def _policy(file: str | None, user: str | None) -> Document | None:
    if file is None:
        return None
    from gpuiso.cli.source import read_source
    from gpuiso.launch.account import find_account
    from gpuiso.launch.open_as import open_as
    from gpuiso.policy.document import parse_policy

    account = find_account(user, os.environ)
    if os.geteuid() != 0 or account.uid == 0:
        return parse_policy(read_source(file), file=file)
    try:
        text = read_source(file, opener=partial(open_as, account))
    except NotPermitted as error:
        raise NotPermitted(error.message, hint=f"it is opened as {account.name}, for whom the program runs") from error
    return parse_policy(text, file=file)


def _variables(entries: list[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator or not name:
            raise UsageError(f"--env {entry}: expected NAME=VALUE")
        found.append((name, value))
    return tuple(found)


def _started(pid: int, prepared: Prepared, units: tuple[Unit, ...], *, as_json: bool) -> None:
    names = [unit.id for unit in units]
    if as_json:
        print_object({"gpuiso": "run/1", "started": True, "pid": pid, "name": prepared.home.name, "gpus": names})
    else:
        print(plain(f"process {pid} runs in {prepared.home} on {', '.join(map(str, units)) or 'no GPU'}"))


def _show(prepared: Prepared, options: Options, *, as_json: bool) -> None:
    from gpuiso.host import open_host

    units = prepared.choose(lambda: open_host(None))
    environment = prepared.environment(units, os.environ)
    policy, variables = prepared.policy(units, os.environ)
    decided = {**environment.set, **variables, **dict(options.variables)}
    limits = {name: " ; ".join(lines) for name, lines in policy.files.items()}
    if prepared.gpu_max is not None:
        limits["gpu.max"] = str(prepared.gpu_max)
    if as_json:
        print_object(
            {
                "gpuiso": "run/1",
                "started": False,
                "name": prepared.home.name,
                "home": str(prepared.home),
                "user": prepared.account.name,
                "gpus": [unit.id for unit in units],
                "rules": [str(rule) for rule in policy.rules],
                "environment": decided,
                "notices": list(environment.notices),
                "limits": limits,
                "program": prepared.program,
                "command": list(options.command),
            }
        )
        return
    lines = [f"lease {unit}" for unit in units] or ["lease no GPU"]
    lines.append(f"make {prepared.home}")
    lines += [f"rule: {rule}" for rule in policy.rules]
    lines += [f"limit: {name} {value}" for name, value in limits.items()]
    if options.private_dev:
        lines.append(f"a /dev of its own with {', '.join(node.path for node in prepared.nodes(units))}")
    lines += [f"set {name}={value}" for name, value in decided.items()]
    lines += environment.notices
    lines.append(f"as {prepared.account.name if prepared.account.switch else 'the caller'} run {prepared.program}")
    for line in lines:
        print(plain(line))
