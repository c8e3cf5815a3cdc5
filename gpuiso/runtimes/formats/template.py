# SPDX-License-Identifier: Apache-2.0
"""A block of TOML at the end of a file that is no TOML: a template, which only its own program can read."""

from __future__ import annotations

from typing import Any

from gpuiso.errors import BadInput
from gpuiso.runtimes.formats import Path, Value
from gpuiso.runtimes.formats.toml import TomlDocument

__all__ = ["TemplateDocument"]

BEGIN = "# gpuiso: begin"
END = "# gpuiso: end"


class TemplateDocument:
    """``data`` is the block's alone. :raises BadInput: the marks do not come in a pair, or the block is not TOML."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        lines = text.splitlines(keepends=True)
        begins = [index for index, line in enumerate(lines) if line.strip() == BEGIN]
        ends = [index for index, line in enumerate(lines) if line.strip() == END]
        if len(begins) != len(ends) or len(begins) > 1 or (begins and begins[0] > ends[0]):
            at = (begins or ends)[0] + 1
            raise BadInput(f"{BEGIN!r} and {END!r} must stand once, in this order", file=file, line=at)
        if begins:
            self._first = begins[0] + 1
            self._before = "".join(lines[: begins[0] + 1])
            self._after = "".join(lines[ends[0] :])
            body = "".join(lines[begins[0] + 1 : ends[0]])
        else:
            self._before = text + ("" if not text or text.endswith("\n") else "\n") + f"\n{BEGIN}\n"
            self._first = self._before.count("\n")
            self._after, body = f"{END}\n", ""
        self._untouched = text
        self._body = TomlDocument(body, file)
        self._old_body = body

    @property
    def text(self) -> str:
        if self._body.text == self._old_body:
            return self._untouched
        body = self._body.text
        return self._before + body + ("" if body.endswith("\n") else "\n") + self._after

    @property
    def data(self) -> dict[str, Any]:
        return self._body.data

    def line(self, path: Path) -> int | None:
        line = self._body.line(path)
        return None if line is None else self._first + line

    def set(self, path: Path, value: Value) -> None:
        self._body.set(path, value)
