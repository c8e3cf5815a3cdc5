# SPDX-License-Identifier: Apache-2.0
"""A host's files for an inventory, which tells what it can: what is not known becomes None and is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpuiso.errors import Unknown
from gpuiso.gpu.model import DeviceNode, Role
from gpuiso.host.protocol import Host

__all__ = ["Sources"]

_T = TypeVar("_T")


class Sources:
    """Reads like a :class:`gpuiso.host.protocol.Host`; ``missing`` says what could not be known."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.missing: list[str] = []

    def _ask(self, question: Callable[[str], _T], path: str) -> _T | None:
        try:
            return question(path)
        except Unknown as error:
            self.missing.append(error.message)
            return None

    def text(self, path: str) -> str | None:
        return self._ask(self._host.text, path)

    def listdir(self, path: str) -> tuple[str, ...]:
        """Nothing for a directory that does not exist or is not known."""
        return self._ask(self._host.listdir, path) or ()

    def readlink(self, path: str) -> str | None:
        return self._ask(self._host.readlink, path)

    def nvml(self) -> dict[str, Any]:
        """Empty where NVML is not there or does not answer."""
        return self._ask(lambda _: self._host.nvml(), "") or {}

    def node(
        self, path: str, role: Role, major: int | None, minor: int | None, *, required: bool = False
    ) -> DeviceNode:
        """A node that ought to be there, beside what is there."""
        try:
            return DeviceNode(path, role, major, minor, self._host.stat(path), required)
        except Unknown as error:
            self.missing.append(error.message)
            return DeviceNode(path, role, major, minor, None, required, known=False)
