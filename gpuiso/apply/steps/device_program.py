# SPDX-License-Identifier: Apache-2.0
"""Attach our device program to a cgroup, in the place of the one that we have there.

There is no moment without a program: BPF_F_REPLACE exchanges the two in one step, and before Linux 5.6 the new one
is attached before the old one goes, so that for a moment both must allow.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed
from gpuiso.devfilter.insn import Malformed
from gpuiso.devfilter.owner import GPUISO_NAME, owner
from gpuiso.devfilter.recover import recover
from gpuiso.kernel.bpf import ProgInfo

__all__ = ["AttachProgram", "attached_programs", "same_program"]

_RETRIES = 20


@dataclass(frozen=True)
class AttachProgram(Step):
    """``insns`` is the compiled program in hex, ``rules`` how many rules it holds."""

    mount: str
    cgroup: str
    insns: str
    rules: int

    kind = "attach-program"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.mount}{self.cgroup}"

    def describe(self) -> str:
        size = len(self.insns) // 16
        rules = "1 rule" if self.rules == 1 else f"{self.rules} rules"
        return (
            f"attach a device program of {rules} ({size} instructions) to {self.mount}{self.cgroup}, "
            "in the place of an earlier one of gpuiso's, beside those of others"
        )

    def verifies(self) -> str:
        return "exactly one program of gpuiso's is attached, and it is this one"

    def record(self, calls: Calls) -> Before:
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                ours = [info for info in attached_programs(calls, directory) if _may_be_ours(info)]
        except FileNotFoundError:
            ours = []  # an earlier step makes the cgroup
        return {"programs": [{"id": p.id, "insns": None if p.insns is None else p.insns.hex()} for p in ours]}

    @staticmethod
    def of_earlier(before: Before, earlier: AttachProgram) -> Before:
        """Of what ``record`` found, what is known to be gpuiso's: what the step that is remembered attached."""
        meant = bytes.fromhex(earlier.insns)
        return {"programs": [old for old in before["programs"] if same_program(_bytes(old["insns"]), meant)]}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            for old in before["programs"]:
                # Held open, so that undo can attach the very same program again.
                keep.callback(os.close, calls.prog_open(old["id"]))
            new = calls.prog_load(bytes.fromhex(self.insns))
            keep.callback(os.close, new)
            _exchange(calls, directory, new, [old["id"] for old in before["programs"]])

    def check(self, calls: Calls) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            ours = [info for info in attached_programs(calls, directory) if _may_be_ours(info)]
        meant = bytes.fromhex(self.insns)
        same = [info for info in ours if same_program(info.insns, meant)]
        if ours and not same:
            raise StepFailed(f"the kernel shows another program at {self.mount}{self.cgroup} than was attached")
        if len(same) != 1:
            raise StepFailed(f"{self.mount}{self.cgroup} carries {len(same)} programs of gpuiso's, not one")

    def undo(self, calls: Calls, before: Before) -> str | None:
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                return self._undo(calls, directory, before)
        except FileNotFoundError:
            return None  # the cgroup is gone, and its programs with it

    def _undo(self, calls: Calls, directory: int, before: Before) -> str | None:
        now = [info.id for info in attached_programs(calls, directory) if self._is_one_of(info, before)]
        wanted = [old["id"] for old in before["programs"]]
        if now == wanted:
            return None
        extra = [number for number in now if number not in wanted]
        for old in before["programs"]:
            if old["id"] in now:
                continue
            with _reopened(calls, old["id"], old["insns"]) as program:
                _exchange(calls, directory, program, extra[:1])
            extra = extra[1:]
        for number in extra:
            _detach(calls, directory, number)
        where = f"{self.mount}{self.cgroup}"
        return f"attached the program from before to {where}" if wanted else f"detached the program from {where}"

    def _is_one_of(self, info: ProgInfo, before: Before) -> bool:
        """Whether a program is the step's own or from before it; every one of gpuiso's if nothing is known of it."""
        if not _may_be_ours(info) or not self.insns:
            return _may_be_ours(info)
        known = [bytes.fromhex(self.insns), *(_bytes(old["insns"]) for old in before["programs"])]
        return any(insns is None or same_program(info.insns, insns) for insns in known)


def attached_programs(calls: Calls, directory: int) -> list[ProgInfo]:
    """What is attached to one cgroup, in the order of running."""
    for _ in range(_RETRIES):
        found = []
        try:
            for number in calls.prog_query(directory).ids:
                program = calls.prog_open(number)
                try:
                    found.append(calls.prog_info(program))
                finally:
                    os.close(program)
        except FileNotFoundError:
            continue  # a program was replaced while we looked
        return found
    raise StepFailed(f"device programs were replaced {_RETRIES} times while they were read")


def _may_be_ours(info: ProgInfo) -> bool:
    """By its name, and by its instructions where the kernel shows them."""
    if info.insns is None:
        return info.name == GPUISO_NAME
    return owner(info.insns, name=info.name, gpl_compatible=info.gpl_compatible).name == "gpuiso"


def _bytes(insns: str | None) -> bytes | None:
    return None if insns is None else bytes.fromhex(insns)


def same_program(shown: bytes | None, meant: bytes) -> bool:
    """Whether the kernel's translation of a program answers as it was meant to."""
    if shown == meant:
        return True
    if shown is None:
        return True  # the kernel withholds it; what it answers is tried by the verification of the plan
    try:
        return recover(shown).tables == recover(meant).tables
    except Malformed:
        return False


def _exchange(calls: Calls, directory: int, new: int, olds: Sequence[int]) -> None:
    """Attach ``new`` and take away the programs with the ids ``olds``, without a moment in which neither holds."""
    if olds:
        _replace(calls, directory, new, olds[0])
    else:
        calls.prog_attach(directory, new)
    for number in olds[1:]:
        _detach(calls, directory, number)


def _replace(calls: Calls, directory: int, new: int, old_id: int) -> None:
    try:
        old = calls.prog_open(old_id)
    except FileNotFoundError:
        calls.prog_attach(directory, new)
        return
    try:
        calls.prog_replace(directory, new, old)
    except FileNotFoundError:
        calls.prog_attach(directory, new)  # somebody detached the old one meanwhile
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        calls.prog_attach(directory, new)  # no BPF_F_REPLACE in this kernel
        calls.prog_detach(directory, old)
    finally:
        os.close(old)


def _detach(calls: Calls, directory: int, number: int) -> None:
    try:
        program = calls.prog_open(number)
    except FileNotFoundError:
        return
    try:
        calls.prog_detach(directory, program)
    except FileNotFoundError:
        return
    finally:
        os.close(program)


@contextmanager
def _reopened(calls: Calls, number: int, insns: str | None) -> Iterator[int]:
    """A program from before: itself if somebody still holds it, else one with the same instructions."""
    program = _itself(calls, number, insns)
    if program is None:
        if insns is None:
            raise StepFailed(f"program {number} is gone, and the kernel did not show its instructions")
        program = calls.prog_load(bytes.fromhex(insns))
    try:
        yield program
    finally:
        os.close(program)


def _itself(calls: Calls, number: int, insns: str | None) -> int | None:
    try:
        program = calls.prog_open(number)
    except FileNotFoundError:
        return None
    try:
        info = calls.prog_info(program)
    except OSError:
        os.close(program)
        raise
    # Ids are given out again one day; then it is a program of somebody else.
    if info.name == GPUISO_NAME and (insns is None or info.insns is None or info.insns.hex() == insns):
        return program
    os.close(program)
    return None
