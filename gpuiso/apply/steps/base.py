# SPDX-License-Identifier: Apache-2.0
"""What every step can do."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

from gpuiso.apply.calls import Calls
from gpuiso.errors import GpuisoError

__all__ = ["Before", "Keep", "Occupied", "Step", "StepFailed", "from_json"]

Before = Mapping[str, Any]
"""What a step found, as JSON: all that its undo needs, in this process or in one after a crash."""
Keep = ExitStack
"""Holds what must live until the plan is over, such as descriptors of programs that were replaced."""


class StepFailed(GpuisoError):
    """A step did not do what it was to do; the plan is undone."""


class Occupied(StepFailed):
    """What a step made is in use by others, and stays as it is; nothing else depends on its undoing."""


@dataclasses.dataclass(frozen=True)
class Step(ABC):
    """One change. Its fields are JSON values, so that it can be written to the journal and read back.

    The order of a run: ``record``, then the journal is on disk, then ``apply``, then ``check``. ``undo`` may come
    after any part of that, also in another process, and more than once: it looks at what there is and makes it what
    ``before`` says.
    """

    kind: ClassVar[str]
    _kinds: ClassVar[dict[str, type[Step]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Step._kinds[cls.kind] = cls

    @property
    @abstractmethod
    def key(self) -> str:
        """What it changes: a later policy's step of the same key takes this one's place."""

    @abstractmethod
    def describe(self) -> str:
        """What it will do, in plain words."""

    @abstractmethod
    def verifies(self) -> str:
        """What it reads back afterwards."""

    @abstractmethod
    def record(self, calls: Calls) -> Before:
        """What is there now. Changes nothing. :raises GpuisoError: it cannot be done here."""

    @abstractmethod
    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        """:raises OSError, GpuisoError: it failed, perhaps half-way."""

    @abstractmethod
    def check(self, calls: Calls) -> None:
        """:raises StepFailed: what is read back is not what was meant."""

    @abstractmethod
    def undo(self, calls: Calls, before: Before) -> str | None:
        """Put back what was; returns what it did in plain words, None if there was nothing to do.

        :raises OSError, GpuisoError: it could not.
        """

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **dataclasses.asdict(self)}


def from_json(found: Mapping[str, Any]) -> Step:
    """The step that ``as_json`` wrote. :raises ValueError: it is none."""
    fields = dict(found)
    kind = Step._kinds.get(fields.pop("kind", ""))
    if kind is None:
        raise ValueError(f"no step of kind {found.get('kind')!r}")
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    try:
        return kind(**lists)
    except TypeError as error:
        raise ValueError(f"not a step {found.get('kind')!r}: {error}") from error
