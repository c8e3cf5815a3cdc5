# SPDX-License-Identifier: Apache-2.0
"""Which files of a host are the hook's own, and what may not stand where it is put.

Whoever names a place by mistake names a directory of the host, so nothing is taken away by its place alone.
"""

from __future__ import annotations

import ast
import json
import os
import re

from gpuiso.errors import BadInput, Unknown, UsageError
from gpuiso.hookset.definitions import hooks_d
from gpuiso.host.files import read_file

__all__ = ["check_absolute", "check_places", "launcher_directory", "module_directories", "read_text", "version_of"]

# VERSION and the digest of what is in it; or what an installation that was killed left (gpuiso.hookset.files).
_MODULES = re.compile(r"([0-9][0-9A-Za-z.+!_-]*)-[0-9a-f]{12}")
_PARTIAL = re.compile(r"\.new-[0-9a-z_]{8}")
# A text as repr() writes it, and no other expression: the file may be anybody's.
_ESCAPE = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
_INSERT = re.compile(rf"sys\.path\.insert\(0, ('(?:[^'\\]|{_ESCAPE})*'|\"(?:[^\"\\]|{_ESCAPE})*\")\)")
_IMPORT = "from gpuiso.hook.main import main"


def check_absolute(option: str, path: str) -> None:
    """Engines start the hook from any directory. :raises UsageError: ``path`` is relative."""
    if not path.startswith("/"):
        raise UsageError(f"{option} {path!r} must be an absolute path")


def check_places(path: str, library: str, definitions: str | None) -> None:
    """:raises UsageError: a path is relative.
    :raises BadInput: something that is not the hook's stands where a file or directory of it must be.
    """
    for option, place in (("--path", path), ("--library", library), ("--hooks-dir", definitions)):
        if place is not None:
            check_absolute(option, place)
    if not os.path.basename(path):
        raise BadInput("is not the name of a file", file=path)
    if os.path.lexists(path) and launcher_directory(path) is None:
        raise BadInput("is not gpuiso's hook, and is left alone", file=path, hint="nothing was changed")
    for directory in (os.path.dirname(path), library, *(() if definitions is None else (definitions,))):
        _check_directory(directory)
    for name in () if definitions is None else hooks_d():
        file = f"{definitions}/{name}"
        if os.path.lexists(file) and not os.path.isfile(file):
            raise BadInput("is not a regular file, and is left alone", file=file, hint="nothing was changed")
        if os.path.lexists(file) and not _is_definition(file):
            raise BadInput("is not gpuiso's, and is left alone", file=file, hint="nothing was changed")


def _is_definition(file: str) -> bool:
    try:
        hook = json.loads(read_text(file) or "")["hook"]
        return bool(hook["args"][0] == "gpuiso-hook")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return False


def _check_directory(path: str) -> None:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise BadInput("is not a directory", file=path, hint="nothing was changed")


def launcher_directory(path: str) -> str | None:
    """The directory of modules that our launcher at ``path`` names, None if there is no launcher of ours."""
    lines = (read_text(path) or "").split("\n")
    found = next((match for line in lines if (match := _INSERT.fullmatch(line))), None)
    if found is None or _IMPORT not in lines or not lines[0].startswith("#!"):
        return None
    try:
        return str(ast.literal_eval(found[1]))
    except (SyntaxError, ValueError):
        return None


def version_of(directory: str) -> str | None:
    """The version whose modules are in ``directory``, None if it is not a directory that gpuiso made."""
    match = _MODULES.fullmatch(os.path.basename(directory))
    return match[1] if match is not None and _holds_modules(directory) else None


def module_directories(library: str) -> list[str]:
    """The names in ``library`` of the directories that gpuiso made, of any version."""
    if not os.path.isdir(library):
        return []
    return [
        name
        for name in sorted(os.listdir(library))
        if (_MODULES.fullmatch(name) or _PARTIAL.fullmatch(name)) and _holds_modules(f"{library}/{name}")
    ]


def _holds_modules(directory: str) -> bool:
    if os.path.islink(directory) or not os.path.isdir(directory):
        return False
    files = [f"{base}/{name}" for base, _, names in os.walk(directory) for name in names]
    return bool(files) and all(
        file.startswith(f"{directory}/gpuiso/") and file.endswith((".py", ".pyc")) for file in files
    )


def read_text(path: str) -> str | None:
    """The text of a regular file, None if there is none or it cannot be read as UTF-8."""
    try:
        data = read_file(path)
        return None if data is None else data.decode()
    except (Unknown, ValueError):
        return None
