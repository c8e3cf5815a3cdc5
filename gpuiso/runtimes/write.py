# SPDX-License-Identifier: Apache-2.0
"""Putting planned files in place: what was there stays beside it, and what an engine refuses is not written."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass

from gpuiso.errors import BadInput, FailedAndUndone, GpuisoError, NotFound, NotPermitted, NotUndone
from gpuiso.host.protocol import Host
from gpuiso.oci.files import replace_file
from gpuiso.runtimes.engine import Engine
from gpuiso.runtimes.plan import FileChange, Plan

__all__ = ["Written", "restart", "service_of", "write", "write_and_restart"]

_RESTART_DEADLINE = 120.0


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was replaced; ``backup`` is None where there was none before."""

    path: str
    backup: str | None


def write(plan: Plan, host: Host, *, ask: bool = True) -> tuple[Written, ...]:
    """Replace every file that changes, all or none.

    The old file is copied to NAME.gpuiso-backup-TIME with its mode and owner first. Where the engine's program can
    check a file it is asked before, if ``ask``.

    :raises BadInput: the engine's own check refuses the new text. Nothing was changed.
    :raises NotPermitted: a directory may not be written. Nothing was changed.
    :raises FailedAndUndone: a file cannot be written; those before it are as they were.
    """
    wanted = [file for file in plan.files if file.changed]
    if ask and wanted and len(plan.files) == 1:
        _ask_the_engine(plan.engine, wanted[0], host)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    done: list[tuple[FileChange, Written]] = []
    try:
        for file in wanted:
            done.append((file, _write_one(file, stamp, plan.place.backups)))
    except GpuisoError:
        for file, written in reversed(done):
            put_back(file, written)
        raise
    return tuple(written for _, written in done)


def _write_one(file: FileChange, stamp: str, backups: str | None) -> Written:
    backup = None
    try:
        os.makedirs(os.path.dirname(file.path), mode=0o755, exist_ok=True)
    except PermissionError as error:
        raise NotPermitted(f"{file.path}: not permitted to make its directory: {error.strerror}") from error
    except OSError as error:
        raise FailedAndUndone(f"{file.path}: its directory cannot be made: {error.strerror}") from error
    if file.old is not None:
        _unchanged_since(file)
        backup = _keep(file, stamp, backups)
    replace_file(file.path, file.new.encode())
    return Written(file.path, backup)


def _unchanged_since(file: FileChange) -> None:
    """Somebody may have changed the file after the plan was made."""
    with open(file.path, "rb") as now:
        if now.read() != (file.old or "").encode():
            raise FailedAndUndone(f"{file.path}: it was changed meanwhile", hint="run the command again")


def _keep(file: FileChange, stamp: str, backups: str | None) -> str:
    """Copy the old file beside it, or into ``backups``. One of the same second stays, and ours gets a number."""
    target = os.path.realpath(file.path)
    name = f"{backups or os.path.dirname(target)}/{os.path.basename(target)}.gpuiso-backup-{stamp}"
    number = 1
    backup = name
    while os.path.lexists(backup):
        number += 1
        backup = f"{name}-{number}"
    old = os.stat(file.path)
    replace_file(backup, (file.old or "").encode(), mode=old.st_mode & 0o7777, owner=(old.st_uid, old.st_gid))
    return backup


def put_back(file: FileChange, written: Written) -> None:
    """Undo one file. The backup goes with it. :raises NotUndone: it cannot be."""
    try:
        if file.old is None:
            os.unlink(written.path)
        else:
            replace_file(written.path, file.old.encode())
        if written.backup is not None:
            os.unlink(written.backup)
    except (OSError, GpuisoError) as error:
        raise NotUndone(f"{written.path}: cannot be put back as it was: {error}", hint=written.backup) from error


def _ask_the_engine(engine: Engine, file: FileChange, host: Host) -> None:
    """The engine's program reads the new text from a file of another name."""
    if engine.check is None:
        return
    with tempfile.NamedTemporaryFile(prefix="gpuiso-", suffix=f"-{os.path.basename(file.path)}") as candidate:
        candidate.write(file.new.encode())
        candidate.flush()
        argv = engine.check(candidate.name)
        result = host.command(argv, timeout=20.0)
        if result is None or result.timed_out or result.exit == 0:
            return
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        if not any(candidate.name in line for line in said):
            return  # it failed for another reason, such as a program too old to check a file
        last = next(line for line in reversed(said) if candidate.name in line)
        raise BadInput(
            f"{argv[0]} refuses the new configuration: {last.replace(candidate.name, file.path)}",
            file=file.path,
            hint="nothing was changed; --force does not ask it",
        )


def service_of(engine: Engine, host: Host) -> str | None:
    """The unit that has to be restarted, None if there is none."""
    if not host.systemd or not engine.services:
        return None
    for unit in engine.services:
        properties = host.unit(unit)
        if properties is not None and properties.get("LoadState") == "loaded":
            return unit
    return None


def restart(unit: str, *, user: bool = False) -> None:
    """Restart a unit and wait until it runs again.

    :raises NotFound: no systemctl here.
    :raises NotPermitted: only root may.
    :raises FailedAndUndone: it does not come up; the caller puts the files back.
    """
    argv = ["systemctl", *(["--user"] if user else []), "restart", unit]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_RESTART_DEADLINE, check=False)
    except FileNotFoundError:
        raise NotFound("systemctl is not installed: nothing was restarted") from None
    except subprocess.TimeoutExpired:
        raise FailedAndUndone(f"{unit} is not up after {_RESTART_DEADLINE:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it did not say why"])[0]
        if os.geteuid() != 0 and not user:
            raise NotPermitted(f"{unit} was not restarted: {said}")
        raise FailedAndUndone(f"{unit} does not start: {said}", hint=f"journalctl -u {unit} -n 20 says why")


def write_and_restart(
    plan: Plan, host: Host, unit: str, *, ask: bool = True, user: bool = False
) -> tuple[Written, ...]:
    """:func:`write`, and then restart the unit; if it does not come up, the files are put back and it is restarted
    once more.

    :raises FailedAndUndone: the unit does not start with the new files; with the old ones it runs again.
    :raises NotUndone: it does not start with the old ones either.
    """
    written = write(plan, host, ask=ask)
    if not written:
        return written
    try:
        restart(unit, user=user)
    except (FailedAndUndone, NotFound, NotPermitted) as error:
        changed = {file.path: file for file in plan.files}
        for one in reversed(written):
            put_back(changed[one.path], one)
        if not isinstance(error, FailedAndUndone):
            raise
        try:
            restart(unit, user=user)
        except GpuisoError as again:
            raise NotUndone(
                f"{error.message}; the files were put back, and it does not start with them either", hint=again.hint
            ) from error
        raise FailedAndUndone(
            f"{error.message}; the files were put back and {unit} runs again", hint=error.hint
        ) from error
    return written
