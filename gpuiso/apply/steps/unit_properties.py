# SPDX-License-Identifier: Apache-2.0
"""Change properties of a systemd unit: at once for its cgroup, and in drop-ins that a daemon-reload reads again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep, Step, StepFailed
from gpuiso.apply.steps.device_program import attached_programs
from gpuiso.devfilter.owner import owner

__all__ = ["SetUnitProperties"]

_LISTS = frozenset({"DeviceAllow"})
_TRANSIENT, _RUNTIME, _PERSISTENT = (
    "/run/systemd/transient",
    "/run/systemd/system.control",
    "/etc/systemd/system.control",
)


@dataclass(frozen=True)
class SetUnitProperties(Step):
    """``properties`` are pairs of a name and a value as D-Bus has it; a list takes the place of what was there.

    ``runtime`` lasts until the next boot, otherwise it is for good. ``transient`` units keep their drop-ins
    elsewhere (unit_drop_in_dir in systemd's unit.c). ``mount`` and ``cgroup`` are where the unit runs, if it does.
    """

    unit: str
    properties: tuple[tuple[str, Any], ...]
    runtime: bool
    transient: bool
    mount: str | None = None
    cgroup: str | None = None

    kind = "set-unit-properties"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.unit}"

    def describe(self) -> str:
        values = "; ".join(f"{name}={_words(value)}" for name, value in self.properties)
        return f"set {values} on {self.unit}, {'until the next boot' if self.runtime else 'for good'}"

    def verifies(self) -> str:
        return "the unit shows them"

    @property
    def _directory(self) -> str:
        base = _TRANSIENT if self.transient else _RUNTIME if self.runtime else _PERSISTENT
        return f"{base}/{self.unit}.d"

    def _drop_ins(self) -> dict[str, str | None]:
        """The drop-ins that systemd writes for the properties, with their content; None: not there."""
        found: dict[str, str | None] = {}
        for name, _ in self.properties:
            path = Path(self._directory, f"50-{name}.conf")
            try:
                found[str(path)] = path.read_text()
            except FileNotFoundError:
                found[str(path)] = None
        return found

    def record(self, calls: Calls) -> Before:
        shown = calls.unit_properties(self.unit)
        values = {name: shown[name] for name, _ in self.properties}
        return {"values": values, "drop_ins": self._drop_ins(), "filtered": bool(self._systemds(calls))}

    def _systemds(self, calls: Calls) -> list[int]:
        """The programs that systemd has attached to the unit's cgroup."""
        if self.mount is None or self.cgroup is None:
            return []
        try:
            with calls.cgroup(self.mount, self.cgroup) as directory:
                programs = attached_programs(calls, directory)
        except FileNotFoundError:
            return []
        return [p.id for p in programs if p.insns is not None and owner(p.insns, name=p.name).name == "systemd"]

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        calls.set_unit_properties(self.unit, _with_resets(self.properties), runtime=self.runtime)

    def check(self, calls: Calls) -> None:
        shown = calls.unit_properties(self.unit)
        for name, value in self.properties:
            if not _same(shown.get(name), value):
                raise StepFailed(f"{self.unit} shows {name}={_words(shown.get(name))} after {_words(value)} was set")

    def undo(self, calls: Calls, before: Before) -> str | None:
        """The old values first, then the files. systemd is not told to reload for that: it holds the old values, and
        a reload would make it attach its programs to every other unit again."""
        values: Mapping[str, Any] = before["values"]
        shown = calls.unit_properties(self.unit)
        changed = not all(_same(shown.get(name), value) for name, value in values.items())
        if changed:
            # systemd puts each further entry of a list before the others, and shows them in that order.
            old = [(name, value[::-1] if name in _LISTS else value) for name, value in values.items()]
            calls.set_unit_properties(self.unit, _with_resets(old), runtime=self.runtime)
        now = self._drop_ins()
        for path, content in before["drop_ins"].items():
            if content is None and now.get(path) is not None:
                calls.unlink(path)
            elif content is not None and now.get(path) != content:
                calls.replace_file(path, content.encode(), 0o644)
        if any(content is None for content in before["drop_ins"].values()):
            calls.rmdir_if_empty(self._directory)
        if not before["filtered"]:
            self._take_filter_away(calls)
        return f"{self.unit} has its properties from before" if changed or now != before["drop_ins"] else None

    def _take_filter_away(self, calls: Calls) -> None:
        """A runtime had put its program in the place of systemd's, which by now has attached one again.

        Left there, it would deny what the runtime allowed without telling systemd.
        """
        for number in self._systemds(calls):
            with calls.cgroup(self.mount or "", self.cgroup or "") as directory:
                program = calls.prog_open(number)
                try:
                    calls.prog_detach(directory, program)
                finally:
                    os.close(program)


def _with_resets(properties: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """For lists an empty value first, which forgets what was there; the next one adds."""
    found: list[tuple[str, Any]] = []
    for name, value in properties:
        if name in _LISTS:
            found.append((name, []))
            if not value:
                continue
        found.append((name, value))
    return found


def _same(shown: Any, value: Any) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(shown, (list, tuple)):
        return sorted(map(_row, shown)) == sorted(map(_row, value))
    return bool(shown == value)


def _row(entry: Any) -> tuple[Any, ...]:
    return tuple(entry) if isinstance(entry, (list, tuple)) else (entry,)


def _words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(" ".join(map(str, _row(entry))) for entry in value) or "(none)"
    if value == (1 << 64) - 1:
        return "infinity"
    return str(value)
