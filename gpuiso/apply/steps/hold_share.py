# SPDX-License-Identifier: Apache-2.0
"""Hand a gpu.max to the governor."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpuiso.apply.calls import Calls
from gpuiso.apply.steps.base import Before, Keep
from gpuiso.apply.steps.remember import Remember

__all__ = ["HoldShare"]


@dataclass(frozen=True)
class HoldShare(Remember):
    """Writes the governor's registry entry; the governor takes it up within a second."""

    cgroup: str = ""
    share: str = ""

    kind = "hold-share"

    def apply(self, calls: Calls, before: Before, keep: Keep) -> None:
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        super().apply(calls, before, keep)

    def describe(self) -> str:
        return f"have the governor hold gpu.max {self.share} on {self.cgroup}"
