# SPDX-License-Identifier: Apache-2.0
"""The list of checks.

A check is a small pure function of a :class:`gpuiso.doctor.machine.Machine` or of a
:class:`gpuiso.doctor.machine.Subject` (a process) that yields findings. It declares the rules it can find, and lets
:class:`gpuiso.errors.Unknown` pass for what it cannot know.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpuiso.doctor.finding import Finding, Rule

if TYPE_CHECKING:
    from gpuiso.doctor.machine import Machine, Subject

__all__ = [
    "MachineCheck",
    "ProcessCheck",
    "all_rules",
    "machine_check",
    "machine_checks",
    "process_check",
    "process_checks",
]

#: Modules of gpuiso.doctor.checks, in the order in which their findings make sense to read.
MODULES: tuple[str, ...] = (
    "lost_gpus",
    "xid_lines",
    "gpu_setup",
    "hanging_driver",
    "nvlink_uptime",
    "held_memory",
    "compute_mode",
    "services",
    "kernel_drivers",
    "node_files",
    "minor_numbers",
    "boot_order",
    "driver_libraries",
    "wsl",
    "node_access",
    "reload_risk",
    "cdi_specs",
    "engine_errors",
    "engine_setup",
    "container_libraries",
    "sandboxes",
    "selinux",
    "lxc",
    "false_advice",
    "exposure",
    "grants",
    "cuda_list",
    "cuda_devices",
    "cuda_reindex",
    "cuda_order",
    "mig",
    "variable_names",
    "launchers",
    "isolation",
    "consumers",
    "container_variables",
    "other_vendors",
)


MachineFunction = Callable[["Machine"], Iterator[Finding]]
ProcessFunction = Callable[["Subject"], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """Runs once for a host."""

    rules: tuple[Rule, ...]
    function: MachineFunction


@dataclass(frozen=True, slots=True)
class ProcessCheck:
    """Runs for every process under examination."""

    rules: tuple[Rule, ...]
    function: ProcessFunction


_machine: list[MachineCheck] = []
_process: list[ProcessCheck] = []


def machine_check(*rules: Rule) -> Callable[[MachineFunction], MachineFunction]:
    """Registers a check of the host with the rules it can find."""

    def register(function: MachineFunction) -> MachineFunction:
        _machine.append(MachineCheck(rules, function))
        return function

    return register


def process_check(*rules: Rule) -> Callable[[ProcessFunction], ProcessFunction]:
    """Registers a check of a process with the rules it can find."""

    def register(function: ProcessFunction) -> ProcessFunction:
        _process.append(ProcessCheck(rules, function))
        return function

    return register


@cache
def _load() -> None:
    for name in MODULES:
        importlib.import_module(f"gpuiso.doctor.checks.{name}")


def machine_checks() -> tuple[MachineCheck, ...]:
    """Every check of a host."""
    _load()
    return tuple(_machine)


def process_checks() -> tuple[ProcessCheck, ...]:
    """Every check of a process."""
    _load()
    return tuple(_process)


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id."""
    rules = {rule for check in machine_checks() for rule in check.rules}
    rules |= {rule for check in process_checks() for rule in check.rules}
    return tuple(sorted(rules, key=lambda rule: rule.id))
