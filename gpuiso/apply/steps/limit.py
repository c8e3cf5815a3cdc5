# SPDX-License-Identifier: Apache-2.0
"""Write a limit to a control file of a cgroup: memory.max, pids.max, dmem.max, io.max, ..."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed

__all__ = ["WriteLimit", "same_limit"]

_KEYED = ("dmem.", "io.", "misc.max", "rdma.max")
"""Files with a line for each device. A write changes the lines that it names and no others."""


@dataclass(frozen=True)
class WriteLimit(Step):
    """``lines`` are written one write(2) each, as the kernel wants them."""

    mount: str
    cgroup: str
    name: str
    lines: tuple[str, ...]

    kind = "write-limit"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.mount}{self.cgroup}/{self.name}"

    @property
    def _path(self) -> str:
        return f"{self.mount}{self.cgroup.rstrip('/')}/{self.name}"

    def describe(self) -> str:
        return f"write {'; '.join(self.lines)} to {self._path}"

    def verifies(self) -> str:
        return f"{self._path} shows it"

    def record(self, calls: Calls) -> Before:
        """Before the controller is enabled the file does not exist; its value will be the kernel's default."""
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                return {"content": calls.read(directory, self.name)}
        except FileNotFoundError:
            return {"content": None}

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                for line in self.lines:
                    calls.write(directory, self.name, line)
        except FileNotFoundError as error:
            raise StepFailed(
                f"there is no {self._path}: this kernel lacks it, or its controller is not enabled",
                hint=f"{self.mount}/cgroup.controllers names the controllers there are",
            ) from error
        except OSError as error:
            said = os.strerror(error.errno or 0)
            raise StepFailed(f"{self._path} does not take {'; '.join(self.lines)!r}: {said}") from error

    def check(self, calls: Calls) -> None:
        with calls.cgroup(self.mount, self.cgroup) as directory:
            shown = calls.read(directory, self.name)
        if not same_limit(self.name, self.lines, shown):
            raise StepFailed(f"{self._path} shows {shown.strip()!r} after {'; '.join(self.lines)!r} was written")

    def undo(self, calls: Calls, before: Before) -> str | None:
        content = before["content"]
        if content is None:
            return None  # the file came with the controller and goes with it
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                if calls.read(directory, self.name) == content:
                    return None
                lines = self._old_lines(content) if self.name.startswith(_KEYED) else [content.strip()]
                for line in lines:
                    calls.write(directory, self.name, line)
        except FileNotFoundError:
            return None
        return f"wrote {'; '.join(lines)} back to {self._path}"

    def _old_lines(self, content: str) -> list[str]:
        """The lines that were there for what was written; a key that had none had the kernel's default."""
        old = {line.split()[0]: line for line in content.splitlines() if line.strip()}
        return [old.get(line.split()[0]) or _default_line(self.name, line) for line in self.lines]


def _default_line(name: str, line: str) -> str:
    key, *rest = line.split()
    if any("=" in word for word in rest):
        default = "0" if name == "io.latency" else "max"
        return " ".join([key, *(f"{word.split('=')[0]}={default}" for word in rest)])
    if name.endswith("weight"):
        return f"{key} default" if key != "default" and rest else "default 100"
    return f"{key} {'0' if name in ('dmem.min', 'dmem.low') else 'max'}"


def same_limit(name: str, lines: Sequence[str], shown: str) -> bool:
    """Whether a file shows what was written to it.

    The kernel counts memory in pages and rounds down, lists more keys than were written, and repeats defaults.
    """
    if name.startswith(_KEYED):
        return all(_shows_line(line, shown) for line in lines)
    ((line,), page) = (lines, os.sysconf("SC_PAGESIZE"))
    wanted, found = line.split(), shown.split()
    if len(wanted) < len(found):
        wanted += found[len(wanted) :]  # cpu.max: the period that was left as it is
    pairs = list(zip(wanted, found, strict=False))
    return len(wanted) == len(found) and all(a == b or _near(name, a, b, page) for a, b in pairs)


def _near(name: str, wanted: str, found: str, page: int) -> bool:
    if not (wanted.isdigit() and found.isdigit()):
        return _float(wanted) is not None and _float(wanted) == _float(found)
    if not name.startswith(("memory.", "hugetlb.", "dmem.")):
        return False
    unit = page if not name.startswith("hugetlb.") else _huge_page(name)
    return int(wanted) - int(wanted) % unit == int(found)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _huge_page(name: str) -> int:
    size = name.split(".")[1]
    return int(size[:-2]) << {"K": 10, "M": 20, "G": 30}[size[-2]]


def _shows_line(line: str, shown: str) -> bool:
    key, *wanted = line.split()
    for entry in shown.splitlines():
        first, *rest = entry.split() or [""]
        if first == key:
            page = os.sysconf("SC_PAGESIZE")
            return all(word in rest or any(_near("dmem.", word, found, page) for found in rest) for word in wanted)
    if not wanted:
        return key in shown.split()
    # A line whose values are all the default is not shown.
    return all(word.endswith(("=max", "max", "default")) for word in wanted)
