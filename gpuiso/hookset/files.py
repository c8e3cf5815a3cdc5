# SPDX-License-Identifier: Apache-2.0
"""The hook's program on a host: its modules in a directory of their own, compiled, and a launcher.

The modules are copied because ``python3 -IS``, which takes nothing from its surroundings, does not look where
packages are installed. Each copy has a directory of its own name, so that a container that starts meanwhile finds
either the old hook or the new one.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gpuiso
from gpuiso import __version__
from gpuiso.errors import BadInput, FailedAndUndone, GpuisoError, NotPermitted, NotSupported, NotUndone
from gpuiso.hookset.definitions import HOOK_PATH, hooks_d
from gpuiso.hookset.places import (
    check_absolute,
    check_places,
    launcher_directory,
    module_directories,
    read_text,
    version_of,
)
from gpuiso.oci.files import replace_file

__all__ = ["HOOKS_D", "LIBRARY", "Installed", "install", "installed", "launcher", "modules", "remove"]

LIBRARY = "/usr/lib/gpuiso-hook"
HOOKS_D = "/etc/containers/oci/hooks.d"
_ENTRY = "gpuiso.hook.main"
_SOURCES = Path(gpuiso.__file__).parent.parent
_LONGEST_LINE = 127  # of the line that names an interpreter, before v5.1
_LONGEST_PROBE = 60.0  # seconds

_LAUNCHER = """#!{python} -IS
# SPDX-License-Identifier: Apache-2.0
import sys
sys.path.insert(0, {directory!r})
sys.dont_write_bytecode = True
from gpuiso.hook.main import main
main()
"""


@dataclass(frozen=True)
class Installed:
    """``version`` is None where the launcher is not ours, or its modules are gone."""

    launcher: str
    library: str | None
    version: str | None
    current: bool
    definitions: tuple[str, ...]


def modules(entry: str = _ENTRY) -> dict[str, Path]:
    """The modules of gpuiso that the hook may import, with all that they import, by their path in a copy."""
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if path is None or str(path.relative_to(_SOURCES)) in found:
            continue
        found[str(path.relative_to(_SOURCES))] = path
        parts = name.split(".")
        waiting += [".".join(parts[:length]) for length in range(1, len(parts))]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gpuiso":
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if alias.name.split(".")[0] == "gpuiso"]
    return dict(sorted(found.items()))


def _source(name: str) -> Path | None:
    base = _SOURCES.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def launcher(python: str, directory: str) -> str:
    """The text of the program that engines start. :raises NotSupported: such a path cannot be named in it."""
    line = f"#!{python} -IS"
    if not python.startswith("/") or " " in python or not python.isprintable() or len(line) > _LONGEST_LINE:
        raise NotSupported(f"{python!r} cannot stand in the first line of a program", hint="name another: --python")
    return _LAUNCHER.format(python=python, directory=directory)


def install(
    python: str,
    *,
    path: str = HOOK_PATH,
    library: str = LIBRARY,
    definitions: str | None = HOOKS_D,
    always: bool = False,
) -> Installed:
    """Put the hook, and its hooks.d files unless ``definitions`` is None, in place; again: bring it up to date.

    With ``always`` engines start it for every container, not only for those that ask for something.

    :raises UsageError: a path is relative.
    :raises BadInput: something that is not ours is where it would be put; nothing was changed.
    :raises NotSupported: ``python`` is no Python 3.11 or later.
    :raises NotPermitted: a directory cannot be written.
    :raises FailedAndUndone: anything else; all is as it was before.
    :raises NotUndone: and it could not be made so.
    """
    check_absolute("--python", python)
    check_places(path, library, definitions)
    _check_python(python)
    content = {name: source.read_bytes() for name, source in modules().items()}
    text = "".join((python, *(f"{name}\0{data.decode()}\0" for name, data in content.items())))
    name = f"{__version__}-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:12]}"
    directory = f"{library}/{name}"
    start = launcher(python, directory)
    if os.path.lexists(directory) and version_of(directory) is None:
        raise BadInput("is not what gpuiso puts there, and is left alone", file=directory, hint="nothing was changed")
    undo: list[Callable[[], object]] = []
    try:
        _make_directories(library, undo)
        if os.path.isdir(directory) and not _is_whole(directory, content):
            aside = tempfile.mkdtemp(prefix=".new-", dir=library)
            os.rename(directory, aside)  # removed below, with what is of other versions
            undo.append(partial(os.rename, aside, directory))
        if not os.path.isdir(directory):
            _copy(content, python, library, directory)
            undo.append(partial(shutil.rmtree, directory))
        _make_directories(os.path.dirname(path), undo)
        if definitions is not None:
            _make_directories(definitions, undo)
        _put(path, start.encode(), 0o755, undo)
        for file, definition in hooks_d(path, always=always).items() if definitions is not None else ():
            _put(f"{definitions}/{file}", definition.encode(), 0o644, undo)
    except BaseException as error:
        _take_back(undo, error)
        if isinstance(error, PermissionError):
            raise NotPermitted(f"{error.filename or library}: not permitted to write it") from error
        if isinstance(error, OSError):
            raise FailedAndUndone(f"{error.filename or library}: {error.strerror}") from error
        raise
    for other in module_directories(library):
        if other != name:
            shutil.rmtree(f"{library}/{other}", ignore_errors=True)  # nothing starts it any more
    return installed(path=path, definitions=definitions)


def _is_whole(directory: str, content: dict[str, bytes]) -> bool:
    """Whether every module is as it was put there, and is compiled."""
    for name, data in content.items():
        path = Path(directory, name)
        compiled = path.parent / "__pycache__"
        try:
            if path.read_bytes() != data or not any(
                file.stat().st_size for file in compiled.glob(f"{path.stem}.*.pyc")
            ):
                return False
        except OSError:
            return False
    return True


def _make_directories(path: str, undo: list[Callable[[], object]]) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        if not os.path.isdir(directory):  # "a/.." and "a/" are there as soon as "a" is
            os.mkdir(directory, mode=0o755)
            undo.append(partial(os.rmdir, directory))


def _put(path: str, data: bytes, mode: int, undo: list[Callable[[], object]]) -> None:
    old = Path(path).read_bytes() if os.path.exists(path) else None
    replace_file(path, data, mode=mode)
    undo.append(partial(os.unlink, path) if old is None else partial(replace_file, path, old))


def _take_back(undo: list[Callable[[], object]], error: BaseException) -> None:
    """:raises NotUndone: a step cannot be taken back; the others are."""
    left = []
    for step in reversed(undo):
        try:
            step()
        except (OSError, GpuisoError) as failed:
            left.append(str(failed))
    if left:
        raise NotUndone(f"{error}; it could not be undone: {'; '.join(left)}") from error


def installed(*, path: str = HOOK_PATH, definitions: str | None = HOOKS_D) -> Installed:
    """What is in place."""
    directory = launcher_directory(path)
    version = None if directory is None else version_of(directory)
    current = version is not None and all(
        read_text(f"{directory}/{name}") == source.read_text(encoding="utf-8") for name, source in modules().items()
    )
    names = [f"{definitions}/{name}" for name in hooks_d()] if definitions is not None else []
    return Installed(path, directory, version, current, tuple(name for name in names if os.path.exists(name)))


def remove(*, path: str = HOOK_PATH, library: str = LIBRARY, definitions: str | None = HOOKS_D) -> tuple[str, ...]:
    """Take the hook away, its definitions first; the paths that are gone.

    ``library`` goes with its last modules, unless something else is in it.

    :raises UsageError: a path is relative.
    :raises BadInput: what is at ``path`` is not ours; nothing is removed.
    :raises NotPermitted: one cannot be removed.
    """
    check_places(path, library, definitions)
    gone = []
    names = [f"{definitions}/{name}" for name in hooks_d()] if definitions is not None else []
    try:
        for name in (*names, path):
            if os.path.lexists(name):
                os.unlink(name)
                gone.append(name)
        made = [f"{library}/{name}" for name in module_directories(library)]
        for directory in made:
            shutil.rmtree(directory)
        if made and not os.listdir(library) and not os.path.islink(library):
            os.rmdir(library)
            made = [library]
    except OSError as error:
        raise NotPermitted(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return (*gone, *made)


def _copy(content: dict[str, bytes], python: str, library: str, directory: str) -> None:
    unfinished = tempfile.mkdtemp(prefix=".new-", dir=library)
    try:
        os.chmod(unfinished, 0o755)  # noqa: S103 - programs are for everybody; mkdtemp thinks of secrets
        for name, data in content.items():
            target = Path(unfinished, name)
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o644)
        # Checked by nobody at run time: the directory is never changed once it has its name.
        options = ["-q", "--invalidation-mode", "unchecked-hash", "-s", unfinished, "-p", directory]
        done = subprocess.run(
            [python, "-IS", "-m", "compileall", *options, unfinished], capture_output=True, check=False
        )
        if done.returncode != 0:
            raise FailedAndUndone(f"{python} cannot compile the hook: {(done.stdout + done.stderr).decode().strip()}")
        os.rename(unfinished, directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _check_python(python: str) -> None:
    """Its status alone would prove nothing: /bin/true has that of a Python."""
    probe = "import ctypes, sys; print(sys.version_info >= (3, 11))"
    command = [python, "-IS", "-c", probe]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_PROBE, check=False
        )
    except OSError as error:
        raise NotSupported(f"{python}: {error.strerror}", hint="name a Python with --python") from error
    except subprocess.TimeoutExpired as error:
        raise NotSupported(f"{python} does not end: it is not the Python that the hook needs") from error
    if done.returncode != 0 or done.stdout != b"True\n":
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NotSupported(f"{python} is not the Python 3.11 (with ctypes) that the hook needs{_because(said)}")


def _because(lines: list[str]) -> str:
    return f": {lines[-1]}" if lines else ""
