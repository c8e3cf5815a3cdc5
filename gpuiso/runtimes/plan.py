# SPDX-License-Identifier: Apache-2.0
"""From a request to the text of files: nothing is written here, and a record of a host will do."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuiso.errors import BadInput, NotPermitted, Unknown, UsageError
from gpuiso.host.protocol import Host
from gpuiso.runtimes.containerd import CONTAINERD
from gpuiso.runtimes.crio import CRIO
from gpuiso.runtimes.docker import DOCKER
from gpuiso.runtimes.engine import Engine, Place, Problem, Request, Setting
from gpuiso.runtimes.formats import Document, Path, Value, decode, dotted, lookup
from gpuiso.runtimes.formats.toml import TomlDocument
from gpuiso.runtimes.k3s import K3S
from gpuiso.runtimes.keys import Key, leaves, parse_key
from gpuiso.runtimes.kubelet import KUBELET
from gpuiso.runtimes.podman import PODMAN
from gpuiso.runtimes.toolkit import TOOLKIT

__all__ = ["ENGINES", "Explained", "FileChange", "Plan", "make_plan"]

ENGINES = {engine.name: engine for engine in (TOOLKIT, DOCKER, CONTAINERD, CRIO, PODMAN, K3S, KUBELET)}


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file as it is (None if there is none) and as it is to be."""

    path: str
    old: str | None
    new: str

    @property
    def changed(self) -> bool:
        return self.new != (self.old or "")

    def diff(self) -> str:
        """The change as ``diff -u`` writes it, empty if there is none."""
        old = (self.old or "").splitlines(keepends=True)
        new = self.new.splitlines(keepends=True)
        before = "/dev/null" if self.old is None else self.path
        lines = difflib.unified_diff(old, new, before, self.path)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Explained:
    """A key and what it means. ``value`` is None where it is not set, ``says`` where gpuiso does not know it."""

    key: str
    value: Any
    line: int | None
    default: Value | None
    says: str | None
    changed: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """``files`` holds the engine's own file first. ``problems`` are those of the configuration as it is to be."""

    engine: Engine
    place: Place
    files: tuple[FileChange, ...]
    explained: tuple[Explained, ...]
    problems: tuple[Problem, ...]

    @property
    def changed(self) -> bool:
        return any(file.changed for file in self.files)


def make_plan(engine: Engine, request: Request, *, force: bool = False) -> Plan:
    """What the files are to hold.

    :raises UsageError: no such key, preset or value.
    :raises BadInput: a file cannot be used, or the change would make a configuration that the engine refuses
        (unless ``force``).
    :raises NotPermitted: a file of this machine may not be read.
    :raises Unknown: the host does not give a file.
    """
    if request.preset is not None and request.preset not in engine.presets:
        raise UsageError(
            f"{engine.title} has no preset {request.preset!r}; there is {', '.join(sorted(engine.presets))}"
        )
    if request.file is not None:
        _read(request.host, request.file)  # before the engine's module wonders what is in it
    place = engine.place(request)
    old = _read(request.host, place.file)
    start = place.initial if old is None or not old.strip() else old
    before, document = place.open(start, place.file), place.open(start, place.file)
    settings = [*_from_preset(engine, request, place), *_from_options(engine, request, place)]
    for setting in settings:
        document.set((*place.prefix, *setting.path), setting.value)
    problems = tuple(_all_problems(engine, request, place, document))
    if settings and not force:
        _refuse_new_errors(problems, set(_messages(_all_problems(engine, request, place, before))))
    changed = document.text != start
    new = document.text if changed or old is None else old
    also = _also(request, place) if changed or old is not None else ()
    if old is None and not settings:
        new = ""
    own = FileChange(place.file, old, new)
    explained = tuple(_explained(engine, place, before, document))
    return Plan(engine, place, (own, *also), explained, problems)


def _read(host: Host, path: str) -> str | None:
    try:
        data = host.read(path)
    except Unknown as error:
        if isinstance(error.__cause__, PermissionError):
            raise NotPermitted(error.message, hint=error.hint) from error
        raise
    if data is None and (node := host.stat(path)) is not None and node.type != "f":
        raise BadInput("is not a regular file", file=path)
    return None if data is None else decode(data, path)


def _from_preset(engine: Engine, request: Request, place: Place) -> list[Setting]:
    return [] if request.preset is None else list(engine.presets[request.preset](request, place))


def _from_options(engine: Engine, request: Request, place: Place) -> Iterator[Setting]:
    """:raises UsageError: a setting that is none, or two that give one key different values."""
    given: dict[Path, tuple[str, Value]] = {}
    for text in request.settings:
        path, name, words = parse_key(text)
        if place.prefix and path[: len(place.prefix)] == place.prefix:
            path = path[len(place.prefix) :]
        value = engine.keys.named(path, name, engine.title).parse(name, words)
        first, other = given.setdefault(path, (text, value))
        if other != value:
            raise UsageError(f"--set {first} and --set {text} contradict each other", hint="give each key once")
        yield Setting(path, value)


def _messages(problems: Iterator[Problem]) -> Iterator[str]:
    return (problem.message for problem in problems)


def _refuse_new_errors(problems: tuple[Problem, ...], old: set[str]) -> None:
    for problem in problems:
        if problem.severity == "error" and problem.message not in old:
            raise BadInput(
                problem.message,
                file=problem.file,
                line=problem.line,
                hint="nothing was changed; --force writes it nevertheless",
            )


def _all_problems(engine: Engine, request: Request, place: Place, document: Document) -> Iterator[Problem]:
    """What is wrong key by key, and what the engine's own module says of the whole if its keys can be read."""
    wrong = list(_wrong_values(engine, place, document))
    yield from wrong
    if not any(problem.severity == "error" for problem in wrong):
        yield from engine.problems(request, place, document)


def _wrong_values(engine: Engine, place: Place, document: Document) -> Iterator[Problem]:
    table = lookup(document.data, place.prefix) if place.prefix else document.data
    if not isinstance(table, dict):
        return
    for path, value in leaves(table):
        line = document.line((*place.prefix, *path))
        key = engine.keys.find(path)
        table_of_keys = any(known.path[: len(path)] == path for known in engine.keys.keys)
        if key is None and value != {} and not table_of_keys and engine.unknown_is != "info":
            message = f"{dotted(path)} is no key of {engine.title}; it is kept"
            yield Problem(engine.unknown_is, message, place.file, line)
        wrong = None if key is None else key.wrong(value)
        if wrong is not None:
            yield Problem("error", f"{dotted(path)} {wrong}", place.file, line)
    for key in engine.keys.keys:  # a value where a table must be
        for length in range(1, len(key.path)):
            above = lookup(table, key.path[:length])
            if above is not None and not isinstance(above, dict) and "*" not in key.path[:length]:
                line = document.line((*place.prefix, *key.path[:length]))
                message = f"{dotted(key.path[:length])} must be a table, not {above!r}"
                yield Problem("error", message, place.file, line)
                return


def _also(request: Request, place: Place) -> Iterator[FileChange]:
    for edit in place.also:
        old = _read(request.host, edit.file)
        document = TomlDocument(old or "", edit.file)
        document.set(edit.path, edit.value)
        yield FileChange(edit.file, old, document.text)


def _explained(engine: Engine, place: Place, before: Document, document: Document) -> Iterator[Explained]:
    table = lookup(document.data, place.prefix) if place.prefix else document.data
    if not isinstance(table, dict):
        return
    for path, value in leaves(table):
        if value == {}:
            continue
        whole: Path = (*place.prefix, *path)
        key: Key | None = engine.keys.find(path)
        yield Explained(
            dotted(path),
            value,
            document.line(whole),
            None if key is None else key.default,
            None if key is None else key.says,
            lookup(before.data, whole) != value,
        )
