# SPDX-License-Identifier: Apache-2.0
"""gpu.max of a container: an entry for the governor (:mod:`gpuiso.govern.registry` reads it), until poststop."""

from __future__ import annotations

import os
import sys

from gpuiso.hook.errors import HookError
from gpuiso.hook.text import quote, read_file
from gpuiso.hook.undo import Undo

__all__ = ["REGISTRY", "forget", "register", "smallest_share"]

REGISTRY = "/run/gpuiso/govern"
_LIMIT = 1 << 16


def smallest_share(texts: list[str]) -> str:
    """The smallest of some shares, as the registry holds it. :raises HookError: one is no share of time."""
    from gpuiso.policy.quota import parse_share

    shares = []
    for text in texts:
        try:
            quota, period = parse_share(text)
        except ValueError as error:
            raise HookError(f"gpu.max {text!r}: {error}") from None
        shares.append((1.0 if quota is None else quota / period, f"{'max' if quota is None else quota} {period}"))
    return min(shares)[1]


def register(container: str, cgroup: str, share: str, undo: Undo, directory: str = REGISTRY) -> None:
    """Have the governor hold ``share`` for ``cgroup``; it takes it up within a second."""
    path = _file(cgroup, directory)
    temporary = f"{directory}/.new-{os.getpid()}"
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            entry = f'{{"cgroup": {quote(cgroup)}, "gpu.max": {quote(share)}, {_owner(container)}}}'
            file.write(entry.encode())
        os.rename(temporary, path)
    except OSError as error:
        raise HookError(f"gpu.max cannot be handed to the governor: {directory}: {error.strerror}") from None
    undo.on_failure(lambda: os.unlink(path))


def forget(container: str, directory: str = REGISTRY) -> None:
    """Takes the entries of a container away, if it had any: by then nobody knows its cgroup."""
    owner = _owner(container).encode()
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        path = f"{directory}/{name}"
        try:
            if name.endswith(".json") and owner in read_file(path, _LIMIT, follow=False):
                os.unlink(path)
        except FileNotFoundError:
            pass  # the governor forgot it first: its cgroup is gone


def _owner(container: str) -> str:
    return f'"container": {quote(container)}'


def _file(cgroup: str, directory: str) -> str:
    """The name that the registry gives to the entry of a cgroup."""
    try:
        # Python's own; hashlib would load OpenSSL for it.
        module = __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        import hashlib as module
    return f"{directory}/{module.sha256(cgroup.encode()).hexdigest()[:32]}.json"
