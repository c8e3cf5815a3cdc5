# SPDX-License-Identifier: Apache-2.0
"""Bundles, states and processes of the hook for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuiso.hook.arguments import container_work
from gpuiso.hook.container import prepare_container
from gpuiso.hook.errors import HookError
from gpuiso.hook.state import State
from gpuiso.hook.undo import Undo
from gpuiso.kernel.libc import libc
from gpuiso.kernel.ns import CLONE_NEWNS
from tests.support import REPOSITORY

LIB = "/usr/lib/x86_64-linux-gnu"


def make_bundle(path: Path, config: Mapping[str, Any] | None = None) -> Path:
    """A bundle whose root filesystem is an empty directory; returns the latter."""
    rootfs = path / "rootfs"
    rootfs.mkdir(parents=True)
    document = {"ociVersion": "1.0.2", "root": {"path": "rootfs"}} | dict(config or {})
    (path / "config.json").write_text(json.dumps(document))
    return rootfs


def state_document(bundle: Path, **more: Any) -> dict[str, Any]:
    return {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 1, "bundle": str(bundle)} | more


def prepare(bundle: Path, *arguments: str, finish: bool = True) -> Undo:
    """createContainer in this process; what was done, for taking it back."""
    undo = Undo()
    try:
        prepare_container(State(state_document(bundle)), container_work(list(arguments)), undo)
    except HookError:
        left = undo.take_back()
        if left:
            raise AssertionError(left) from None
        raise
    if finish:
        undo.finish()
    return undo


def run_hook(
    *arguments: str,
    stdin: bytes | int | None = None,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """The hook as a process, started as its launcher does."""
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from gpuiso.hook.main import main; main()"
    data = stdin if isinstance(stdin, bytes) else None
    done = subprocess.run(
        [python, "-IS", "-c", code, *arguments],
        input=data,
        stdin=stdin if isinstance(stdin, int) else None,
        capture_output=True,
        env={} if env is None else dict(env),
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def tree(path: Path) -> dict[str, tuple[object, ...]]:
    """All that is below a directory: types, modes, contents and targets."""
    return dict(_entries(path, path))


def _entries(top: Path, path: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    for entry in sorted(os.scandir(path), key=lambda one: one.name):
        here = Path(entry.path)
        name = str(here.relative_to(top))
        mode = entry.stat(follow_symlinks=False).st_mode
        if entry.is_symlink():
            yield name, (mode, os.readlink(here))
        elif entry.is_dir():
            yield name, (mode,)
            yield from _entries(top, here)
        elif entry.is_file():
            yield name, (mode, here.read_bytes())
        else:
            yield name, (mode,)


def own_mounts() -> None:
    """Leave the mount namespace of the test run; what is mounted from now on ends with the process."""
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError("unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
