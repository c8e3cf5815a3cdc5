# SPDX-License-Identifier: Apache-2.0
"""Writes a host's record: the format of docs/host-record.md, redacted unless asked otherwise."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuiso.errors import FailedAndUndone, NotPermitted, Unknown, UsageError
from gpuiso.host.protocol import Host
from gpuiso.host.record_contents import ask_machine, ask_process, select_processes
from gpuiso.host.record_layout import Layout, lay_out
from gpuiso.host.recorded import FORMAT
from gpuiso.host.recorder import Recorder
from gpuiso.host.redact import Redactor

__all__ = ["Summary", "write_record"]

_ARCHIVES = (".tar.gz", ".tgz")
# What others call archives would be surprised to be a directory.
_NO_ARCHIVES = re.compile(r"(\.tar|\.gz|\.tgz|\.t[bx]z2?|\.bz2|\.xz|\.zst|\.zip|\.7z|\.json|\.html)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written: ``size`` bytes. ``left_out`` names what could not be redacted or is too large."""

    destination: str
    files: int
    nodes: int
    processes: tuple[int, ...]
    size: int
    redacted: bool
    left_out: tuple[str, ...]


def write_record(
    host: Host,
    destination: str,
    *,
    raw: bool = False,
    progress: Callable[[str], None] | None = None,
    pids: Collection[int] = (),
    redactor: Redactor | None = None,
) -> Summary:
    """Records ``host`` into the directory or ``NAME.tar.gz`` at ``destination``, completely or not at all.

    ``pids`` are processes to record beside those that hold or select a GPU. A :class:`Recorder` as ``host`` adds what
    it has been asked before: the record then gives whoever asked the same answers. What the host does not tell is left
    out. ``raw`` leaves identifiers, names and secrets as they are. ``progress`` is called with what is done next.

    :raises UsageError: ``destination`` exists, or its directory does not.
    :raises NotPermitted: not permitted to write there.
    :raises FailedAndUndone: writing failed (no space); nothing is left behind.
    """
    report = progress if progress is not None else _silent
    _check_destination(destination)
    recorder = host if isinstance(host, Recorder) else Recorder(host)
    report("the host")
    ask_machine(recorder)
    chosen = select_processes(recorder.host, (*pids, *_told_pids(recorder)))
    for pid in chosen:
        report(f"process {pid}")
        ask_process(recorder, pid)
    report("writing")
    if raw:
        redactor = None
    elif redactor is None:
        redactor = Redactor()
    layout = lay_out(recorder, chosen, redactor)
    layout.files["record.json"] = f"{json.dumps(_record(recorder, redactor is not None), indent=1)}\n".encode()
    try:
        _publish(layout, destination)
    except PermissionError as error:
        raise NotPermitted(f"{destination}: not permitted to write there") from error
    except OSError as error:
        if error.filename2 is not None and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _exists(destination) from error  # by now: somebody else was faster
        raise FailedAndUndone(f"{destination}: {os.strerror(error.errno or 0)}; nothing was left there") from error
    return Summary(
        destination=destination,
        files=len(layout.files),
        nodes=layout.nodes,
        processes=chosen,
        size=sum(map(len, layout.files.values())),
        redacted=redactor is not None,
        left_out=tuple(layout.left_out),
    )


def _told_pids(recorder: Recorder) -> Iterator[int]:
    """The processes that NVML and Docker name."""
    for gpu in (recorder.tools.get("nvml") or {}).get("gpus", ()):
        for process in gpu.get("processes") or ():
            yield process["pid"]
    for container in (recorder.tools.get("docker_containers") or {}).values():
        pid = (container.get("State") or {}).get("Pid")
        if isinstance(pid, int):
            yield pid


def _record(recorder: Recorder, redacted: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "format": FORMAT,
        "captured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "redacted": redacted,
    }
    for name in ("kernel", "cgroup_mode", "systemd"):
        try:
            record[name] = getattr(recorder, name)
        except Unknown:
            continue  # a record of a record that does not say
    return record


def _check_destination(destination: str) -> None:
    if destination in ("", "-") or "\0" in destination:
        raise UsageError(f"{destination!r} is no place for a record: it is a file NAME.tar.gz or a new directory")
    if not destination.endswith(_ARCHIVES) and _NO_ARCHIVES.search(destination):
        raise UsageError(
            f"{destination}: the name of a record's archive ends in {' or '.join(_ARCHIVES)}; others are of directories"
        )
    try:
        parent = os.path.dirname(os.path.abspath(destination))
    except FileNotFoundError as error:
        raise UsageError(f"{destination}: the current directory is gone: name an absolute path") from error
    if not os.path.isdir(parent):
        raise UsageError(f"{destination}: there is no directory {parent}")
    if not os.path.lexists(destination):
        return
    empty = os.path.isdir(destination) and not os.path.islink(destination) and not os.listdir(destination)
    if not empty or destination.endswith(_ARCHIVES):
        raise _exists(destination)


def _exists(destination: str) -> UsageError:
    return UsageError(f"{destination} exists: a record is never written over anything")


def _publish(layout: Layout, destination: str) -> None:
    parent, name = os.path.split(os.path.abspath(destination))
    if name.endswith(_ARCHIVES):
        fd, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=parent)
        try:
            with open(fd, "wb") as file:
                _write_archive(layout, file)
            os.link(temporary, destination)  # fails if it exists by now, which rename(2) would replace
        finally:
            os.unlink(temporary)
        return
    temporary = tempfile.mkdtemp(prefix=f".{name}.", dir=parent)
    try:
        _write_directory(layout, temporary)
        os.rename(temporary, destination)  # fails unless it is absent or an empty directory
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_directory(layout: Layout, base: str) -> None:
    for directory in sorted(layout.directories):
        os.makedirs(os.path.join(base, directory), exist_ok=True)
    for path, data in layout.files.items():
        target = os.path.join(base, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "xb") as file:
            file.write(data)


def _write_archive(layout: Layout, file: io.BufferedIOBase) -> None:
    import tarfile

    now = int(datetime.now(UTC).timestamp())
    with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for directory in sorted(layout.directories):
            info = tarfile.TarInfo(directory)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, now
            archive.addfile(info)
        for path in sorted(layout.files, key=lambda path: (path != "record.json", path)):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = len(layout.files[path]), 0o644, now
            archive.addfile(info, io.BytesIO(layout.files[path]))


def _silent(_: str) -> None:
    """Nobody wants to hear of the progress."""
