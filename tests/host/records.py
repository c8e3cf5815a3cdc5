# SPDX-License-Identifier: Apache-2.0
"""Records written by hand, for the tests of this package."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuiso.errors import Unknown
from gpuiso.host.recorded import RecordedHost
from tests.support import make_fake_tree

__all__ = ["RECORD", "answer", "device", "host", "link", "pack", "record", "tar_gz"]

RECORD = {"format": "gpuiso-host/1", "kernel": "6.8.0-45-generic", "cgroup_mode": "unified", "systemd": True}


def device(path: str, major: int, minor: int, **more: Any) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor, **more}


def link(path: str, target: str) -> dict[str, Any]:
    return {"path": path, "type": "l", "target": target}


def record(base: Path, files: Mapping[str, Any] | None = None, nodes: list[dict[str, Any]] | None = None) -> Path:
    """A record in the directory ``base``; what is no text becomes JSON, None a directory."""
    content: dict[str, str | bytes | None] = {"record.json": json.dumps(RECORD)}
    for name, value in (files or {}).items():
        content[name] = value if isinstance(value, str | bytes | None) else json.dumps(value)
    if nodes is not None:
        content["nodes.jsonl"] = "".join(f"{json.dumps(node)}\n" for node in nodes)
    return make_fake_tree(base, content)


def host(base: Path, files: Mapping[str, Any] | None = None, nodes: list[dict[str, Any]] | None = None) -> RecordedHost:
    return RecordedHost(str(record(base, files, nodes)))


def answer(question: Callable[..., Any], *args: Any) -> Any:
    """What a host answers, with Unknown as the class itself."""
    try:
        return question(*args)
    except Unknown:
        return Unknown


def pack(source: Path, target: Path, prefix: str = "") -> Path:
    """The directory ``source`` as .tar.gz."""
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(source.rglob("*")):
            archive.add(path, f"{prefix}{path.relative_to(source)}", recursive=False)
    return target


def tar_gz(target: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(str(target), mode) as archive:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return target
