# SPDX-License-Identifier: Apache-2.0
"""Where in the input something stands, and what is said about it: errors, all at once, and remarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuiso.errors import BadInput

__all__ = ["BadPolicy", "Place", "Remark", "bare_message", "raise_errors"]


@dataclass(frozen=True)
class Place:
    """A place in a file: line and column count from 1; None where it is not known. ``text`` stands there."""

    file: str | None = None
    line: int | None = None
    column: int | None = None
    text: str = ""

    def error(self, message: str, hint: str | None = None) -> BadInput:
        return BadInput(message, file=self.file, line=self.line, column=self.column, hint=hint)

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return ": ".join(part for part in (where, self.text) if part)


@dataclass(frozen=True)
class Remark:
    """Something that is allowed and yet probably not meant."""

    place: Place
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return self.place.error(self.message).message


class BadPolicy(BadInput):
    """Everything that is wrong with a policy. The error itself tells the first of ``errors``."""

    def __init__(self, errors: Sequence[BadInput]) -> None:
        first = errors[0]
        more = f" (and {len(errors) - 1} more: gpuiso rules check shows all)" if len(errors) > 1 else ""
        super().__init__(f"{first.message}{more}", hint=first.hint)
        self.file, self.line, self.column = first.file, first.line, first.column
        self.errors = tuple(errors)


def raise_errors(errors: Sequence[BadInput]) -> None:
    """:raises BadPolicy: if there are any."""
    if errors:
        raise BadPolicy(errors)


def bare_message(error: BadInput) -> str:
    """What the error says without the place that it starts with."""
    where = ":".join(str(part) for part in (error.file, error.line, error.column) if part is not None)
    return error.message.removeprefix(f"{where}: ") if where else error.message
