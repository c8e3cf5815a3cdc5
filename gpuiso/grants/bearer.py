# SPDX-License-Identifier: Apache-2.0
"""Who a grant can be for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Bearer"]


@dataclass(frozen=True)
class Bearer:
    """A user, or a container.

    ``uid`` is the user's number, ``name`` and ``groups`` are names, ``cgroup`` is the path in the v2 tree.
    ``annotations`` are those of a container, and None for a user: then nothing counts but them and the cgroup.
    """

    uid: int
    name: str
    groups: frozenset[str] = frozenset()
    cgroup: str = "/"
    annotations: Mapping[str, str] | None = None

    @property
    def names(self) -> frozenset[str]:
        """What a grant may call the user."""
        return frozenset({self.name, str(self.uid)} | ({"*"} if self.uid else set()))

    def has(self, key: str, value: str | None) -> bool:
        """Whether the container has an annotation; with ``value`` None, whatever its value."""
        found = (self.annotations or {}).get(key)
        return found is not None and value in (None, found)
