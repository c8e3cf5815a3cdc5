# SPDX-License-Identifier: Apache-2.0
"""Labs as fixtures. A session boots each release once; tests clean up what they start in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.host import Lab

__all__ = ["lab12", "lab13"]


@pytest.fixture(scope="session")
def lab13() -> Iterator[Lab]:
    """Debian 13: systemd 257, Docker 26.1, podman 5.4."""
    with Lab.boot("trixie") as lab:
        yield lab


@pytest.fixture(scope="session")
def lab12() -> Iterator[Lab]:
    """Debian 12: systemd 252, Docker 20.10, podman 4.3."""
    with Lab.boot("bookworm") as lab:
        yield lab
