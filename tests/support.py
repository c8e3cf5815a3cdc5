# SPDX-License-Identifier: Apache-2.0
"""What tests of several packages share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["REPOSITORY", "SHARED", "make_fake_tree", "needs_shared"]

REPOSITORY = Path(__file__).resolve().parent.parent

_shared = REPOSITORY.parent / "shared"
SHARED: Path | None = _shared if (_shared / "DESIGN.md").is_file() else None
"""The collected facts and cases beside the checkout, or None where only the checkout is."""

needs_shared = pytest.mark.skipif(SHARED is None, reason=f"no {_shared}: the collected facts are not here")


def make_fake_tree(base: Path, files: Mapping[str, str | bytes | None]) -> Path:
    """Write ``files`` below ``base`` and return it: content by path, None for a directory.

    A path may start with "/", as the files of a host do; it stays below ``base``. Raises ValueError for one
    that would leave it.
    """
    for name, content in files.items():
        path = base / name.lstrip("/")
        if ".." in path.parts:
            raise ValueError(f"{name!r} leaves {base}")
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return base
