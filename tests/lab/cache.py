# SPDX-License-Identifier: Apache-2.0
"""Where labs keep what outlives a run: images and wheels, and the locks that keep two runs from building the same."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tests.tiers import lab_cache


def cache_dir() -> Path:
    """The directory of everything cached (:func:`tests.tiers.lab_cache`), made if missing."""
    path = lab_cache()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock of that name, so that two runs do not build the same thing twice."""
    directory = cache_dir() / "locks"
    directory.mkdir(exist_ok=True)
    with (directory / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The directory ``name`` of the cache; ``build`` fills it if it is not there.

    It is filled under another name and renamed when complete, so an aborted build leaves nothing that looks usable.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    with locked(name):
        if target.is_dir():
            return target
        partial = target.with_name(f"{name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(target)
    return target


def prune(keep: Collection[str]) -> list[str]:
    """Remove what is cached under other names, unless it is being built; returns the names."""
    removed = []
    for path in sorted(cache_dir().iterdir()):
        name = path.name.removesuffix(".partial")
        if path.name in keep or path.name == "locks" or not path.is_dir():
            continue
        with locked(name):
            shutil.rmtree(path, ignore_errors=True)
        removed.append(path.name)
    return removed
