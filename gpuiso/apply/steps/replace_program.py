# SPDX-License-Identifier: Apache-2.0
"""Put one device program into the place of another one, whoever attached that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed
from gpuiso.apply.steps.device_program import attached_programs, same_program
from gpuiso.kernel.bpf import BPF_F_ALLOW_MULTI, ProgInfo

__all__ = ["REPAIRED_NAME", "ReplaceProgram"]

REPAIRED_NAME = "gpuiso_repaired"
"""The name of such a program: not that of rules, which ``rules apply`` and ``rules remove`` take for their own."""


@dataclass(frozen=True)
class ReplaceProgram(Step):
    """``program`` is the id of the one to replace; ``old`` and ``new`` are instructions in hex, ``devices`` words.

    ``old`` are those that were looked at when the plan was made: if another program has that id by now, or none is
    attached, the step fails.
    """

    mount: str
    cgroup: str
    program: int
    old: str
    new: str
    devices: str

    kind = "replace-program"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.mount}{self.cgroup} {self.program}"

    @property
    def _where(self) -> str:
        return f"{self.mount}{self.cgroup}"

    def describe(self) -> str:
        return (
            f"replace device program {self.program} of {self._where} by itself with one rule more before it: "
            f"allow {self.devices}"
        )

    def verifies(self) -> str:
        return "the new program is attached, the old one is not"

    def record(self, calls: Calls) -> Before:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            flags = calls.prog_query(directory).attach_flags
            found = [info for info in attached_programs(calls, directory) if self._is_old(info)]
        if not found:
            raise StepFailed(f"program {self.program} is no more attached to {self._where}: somebody changed it")
        if not flags & BPF_F_ALLOW_MULTI:
            raise StepFailed(f"program {self.program} was attached to {self._where} without BPF_F_ALLOW_MULTI")
        return {"name": found[0].name}

    def _is_old(self, info: ProgInfo) -> bool:
        return info.id == self.program and info.insns is not None and info.insns.hex() == self.old

    def _is_new(self, info: ProgInfo) -> bool:
        return info.name == REPAIRED_NAME and same_program(info.insns, bytes.fromhex(self.new))

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            old = calls.prog_open(self.program)
            keep.callback(os.close, old)  # held open, so that undo can attach the very same program again
            new = calls.prog_load(bytes.fromhex(self.new), REPAIRED_NAME)
            keep.callback(os.close, new)
            calls.prog_replace(directory, new, old)

    def check(self, calls: Calls) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            found = attached_programs(calls, directory)
        if any(map(self._is_old, found)) or not any(map(self._is_new, found)):
            raise StepFailed(f"program {self.program} of {self._where} was not replaced")

    def undo(self, calls: Calls, before: Before) -> str | None:
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                found = attached_programs(calls, directory)
                ours = next((info for info in found if self._is_new(info)), None)
                if ours is None or any(map(self._is_old, found)):
                    return None
                with self._opened(calls, ours.id) as new, self._reopened(calls, before) as old:
                    calls.prog_replace(directory, old, new)
        except FileNotFoundError:
            return None  # the cgroup is gone, and its programs with it
        return f"put the program from before back to {self._where}"

    @contextmanager
    def _opened(self, calls: Calls, number: int) -> Iterator[int]:
        program = calls.prog_open(number)
        try:
            yield program
        finally:
            os.close(program)

    @contextmanager
    def _reopened(self, calls: Calls, before: Before) -> Iterator[int]:
        """The old program if somebody still holds it, else one with the same name and instructions."""
        try:
            program = calls.prog_open(self.program)
        except FileNotFoundError:
            program = None
        if program is not None and not self._is_old(calls.prog_info(program)):
            os.close(program)  # ids are given out again one day
            program = None
        if program is None:
            program = calls.prog_load(bytes.fromhex(self.old), str(before["name"]))
        try:
            yield program
        finally:
            os.close(program)
