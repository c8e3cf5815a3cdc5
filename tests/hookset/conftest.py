# SPDX-License-Identifier: Apache-2.0
"""Whatever machine the tests run on, its cgroups are v2."""

from __future__ import annotations

import pytest

from gpuiso.hookset import known


@pytest.fixture(autouse=True)
def _v2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "decided_by_v1", lambda: False)
