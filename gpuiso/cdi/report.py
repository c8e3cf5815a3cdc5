# SPDX-License-Identifier: Apache-2.0
"""What ``gpuiso cdi list`` and ``gpuiso cdi validate`` answer, as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuiso.cdi.cache import Cache, SpecFile, load, spec_files
from gpuiso.cdi.document import Problem
from gpuiso.cdi.engines import Engines, no_engines
from gpuiso.cdi.lint import LintWarning, lint_cache, lint_file
from gpuiso.cdi.validate import read_spec, schema_problems
from gpuiso.errors import NotFound, Unknown
from gpuiso.host.protocol import Host

__all__ = ["FileReport", "list_document", "validate_document", "validate_paths"]


def list_document(cache: Cache) -> dict[str, Any]:
    """``cdi-list/1``: the devices that can be asked for, and what is wrong with the rest."""
    return {
        "gpuiso": "cdi-list/1",
        "devices": list(cache.devices),
        "errors": [{"file": error.file, "message": error.message} for error in cache.errors],
        "conflicts": [{"device": name, "files": list(files)} for name, files in cache.conflicts.items()],
    }


@dataclass(frozen=True, slots=True)
class FileReport:
    """The verdict on one file: refused if it has problems."""

    file: str
    devices: int
    problems: tuple[Problem, ...]
    warnings: tuple[LintWarning, ...]


def validate_paths(host: Host, paths: tuple[str, ...], engines: Engines = no_engines) -> tuple[FileReport, ...]:
    """Judge files, and every spec file of directories. Several directories are also judged together, as a
    cache.

    :raises NotFound: one of ``paths`` does not exist.
    :raises Unknown: one of ``paths`` cannot be read.
    """
    files: list[str] = []
    directories: list[str] = []
    for path in paths:
        node = host.stat(path)
        if node is None:
            raise NotFound(f"{path}: no such file or directory")
        if node.type == "d":
            directories.append(path)
            files += spec_files(host, path)
        else:
            files.append(path)
    cache = load(host, tuple(directories))
    usable = {file.path: file for file in cache.files}
    warnings: dict[str, list[LintWarning]] = {path: [] for path in usable}
    for warning in lint_cache(host, cache, engines):
        warnings[warning.file].append(warning)
    reports = []
    for path in dict.fromkeys(files):
        if path in usable:
            reports.append(_accepted(usable[path], tuple(warnings[path])))
        else:
            reports.append(_judge(host, path, engines))
    return tuple(reports)


def _judge(host: Host, path: str, engines: Engines) -> FileReport:
    try:
        data = host.read(path)
    except Unknown as error:
        return FileReport(path, 0, (Problem("", error.why),), ())
    if data is None:
        return FileReport(path, 0, (Problem("", "not a regular file"),), ())
    spec, problems = read_spec(data)
    if spec is None:
        return FileReport(path, 0, tuple(problems), ())
    file = SpecFile(path, 0, spec)
    return _accepted(file, lint_file(host, file, engines))


def _accepted(file: SpecFile, warnings: tuple[LintWarning, ...]) -> FileReport:
    if refused := tuple(schema_problems(file.spec.to_document())):
        return FileReport(file.path, 0, refused, ())
    return FileReport(file.path, len(file.spec.devices), (), warnings)


def validate_document(reports: tuple[FileReport, ...]) -> dict[str, Any]:
    """``cdi-validate/1``: the verdict on every file, with line and column of each problem where they are
    known.
    """
    return {
        "gpuiso": "cdi-validate/1",
        "files": [
            {
                "file": report.file,
                "verdict": "reject" if report.problems else "accept",
                "problems": [
                    {
                        "where": problem.where,
                        "message": problem.message,
                        "line": problem.line,
                        "column": problem.column,
                    }
                    for problem in report.problems
                ],
                "warnings": [
                    {
                        "rule": warning.rule,
                        "severity": warning.severity,
                        "where": warning.where,
                        "message": warning.message,
                    }
                    for warning in report.warnings
                ],
            }
            for report in reports
        ],
    }
