# SPDX-License-Identifier: Apache-2.0
"""gpu.max of a container: an entry for the governor (:mod:`gpuiso.govern.registry` reads it), until poststop."""

from __future__ import annotations

import os

from gpuiso.hook.errors import HookError
from gpuiso.hook.text import quote
from gpuiso.hook.undo import Undo

__all__ = ["REGISTRY", "forget", "register", "smallest_share"]

REGISTRY = "/run/gpuiso/govern"
_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_LONGEST = 200


def smallest_share(texts: list[str]) -> str:
    """The smallest of some shares, as the registry holds it. :raises HookError: one is no share of time."""
    from gpuiso.policy.limits import parse_gpu_max

    shares = []
    for text in texts:
        try:
            shares.append(parse_gpu_max(text))
        except ValueError as error:
            raise HookError(f"gpu.max {text!r}: {error}") from None
    return str(min(shares, key=lambda share: share.share))


def register(container: str, cgroup: str, share: str, undo: Undo, directory: str = REGISTRY) -> None:
    """Have the governor hold ``share`` for ``cgroup``; it takes it up within a second."""
    path = _file(container, directory)
    temporary = f"{directory}/.new-{os.getpid()}"
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            file.write(f'{{"cgroup": {quote(cgroup)}, "gpu.max": {quote(share)}}}'.encode())
        os.rename(temporary, path)
    except OSError as error:
        raise HookError(f"gpu.max cannot be handed to the governor: {directory}: {error.strerror}") from None
    undo.on_failure(lambda: os.unlink(path))


def forget(container: str, directory: str = REGISTRY) -> None:
    """Takes the entry of a container away, if it had one."""
    try:
        os.unlink(_file(container, directory))
    except FileNotFoundError:
        pass


def _file(container: str, directory: str) -> str:
    """An id may hold what a file name may not; such characters are written as numbers."""
    name = "".join(one if one in _SAFE else f"%{ord(one):x}%" for one in container)
    if len(name) > _LONGEST:
        raise HookError("the container's id is too long")
    return f"{directory}/hook-{name}.json"
