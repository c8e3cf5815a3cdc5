# SPDX-License-Identifier: Apache-2.0
"""The last rung: reset a GPU by nvidia-smi, if nobody else can be hurt by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from gpuiso.errors import GpuisoError, TimedOut
from gpuiso.gpu.model import Gpu
from gpuiso.host.child import Child
from gpuiso.host.protocol import CommandResult, Host
from gpuiso.reclaim.selection import Candidate

__all__ = ["Run", "refusals", "reset", "reset_command", "run"]

Run = Callable[[tuple[str, ...], float], CommandResult]
"""Runs a program for so many seconds at most."""

_DISPLAY = ("nvidia-smi", "--query-gpu=display_active,display_mode", "--format=csv,noheader", "--id")


def run(argv: tuple[str, ...], timeout: float) -> CommandResult:
    """Really runs it. :raises GpuisoError: there is no such program."""
    try:
        return Child(argv).result(timeout)
    except FileNotFoundError as error:
        raise GpuisoError(f"no {argv[0]} on this host") from error


def reset_command(gpu: Gpu) -> tuple[str, ...]:
    """What resets one GPU."""
    return ("nvidia-smi", "--gpu-reset", "--id", str(gpu.uuid or gpu.pci_address))


def refusals(host: Host, gpu: Gpu, users: Iterable[Candidate], *, yes: bool) -> list[str]:
    """Every reason not to reset this GPU now, a clause each. ``users`` are all that still hold it."""
    found = []
    if not yes:
        found.append("a reset was not agreed to: it needs --yes besides --until reset")
    if os.geteuid() != 0:
        found.append("a reset needs root")
    if gpu.vendor != "nvidia":
        found.append(f"resetting GPUs of {gpu.vendor} is not something gpuiso does: it may take their neighbours along")
    if gpu.mig_enabled or gpu.mig_devices:
        found.append("the GPU is partitioned (MIG): a reset would take every partition's jobs")
    if gpu.mig_enabled is None:
        found.append("whether the GPU is partitioned (MIG) is not known")
    holders = ", ".join(f"{user.pid} ({user.comm})" for user in users)
    if holders:
        found.append(f"others use it: {holders}")
    if gpu.vendor == "nvidia":
        found += _display(host, gpu)
    return found


def _display(host: Host, gpu: Gpu) -> list[str]:
    answer = host.command((*_DISPLAY, str(gpu.uuid or gpu.pci_address)))
    if answer is None or answer.exit != 0:
        return ["whether a display hangs on it is not known"]
    words = [word.strip() for word in answer.stdout.strip().split(",")]
    if words and all(word in ("Disabled", "No", "[N/A]", "N/A", "[Not Supported]") for word in words):
        return []
    return ["a display hangs on it"]


def reset(gpu: Gpu, run: Run, deadline: float) -> None:
    """:raises TimedOut: it did not end in time. :raises GpuisoError: it failed, in nvidia-smi's own words."""
    answer = run(reset_command(gpu), deadline)
    if answer.timed_out:
        raise TimedOut(f"the reset of {gpu.uuid} did not end in {deadline:.0f} s", hint="only a reboot is left")
    if answer.exit != 0:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        raise GpuisoError(f"the reset of {gpu.uuid} failed: {said[-1] if said else f'exit {answer.exit}'}")
