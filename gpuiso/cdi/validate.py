# SPDX-License-Identifier: Apache-2.0
"""Reading a spec from text: decode, apply the rules and, on request, the shipped JSON Schema.

The rules decide; the schema (``gpuiso/cdi/schema/cdi.schema.json``) says the same to editors and to other
programs, as far as JSON Schema can. Upstream's own schema accepts any version, kind, hook name, node type and
extra field.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

from gpuiso.cdi.decode import decode, join_path, locate
from gpuiso.cdi.document import Problem
from gpuiso.cdi.rules import faults
from gpuiso.cdi.spec import Spec

__all__ = ["parse_spec", "read_spec", "schema", "schema_problems"]


def parse_spec(data: bytes, file: str) -> Spec:
    """The spec in the text ``data`` of ``file``. Raises BadInput with the first problem and its place."""
    spec, problems = read_spec(data)
    if spec is None:
        raise problems[0].as_error(file)
    return spec


def read_spec(data: bytes) -> tuple[Spec | None, list[Problem]]:
    """The spec in ``data``, or None and every problem that makes the reference refuse it (never none of
    them).
    """
    with _nothing_collected():
        spec, root, problems = decode(data)
        if spec is None:
            return None, problems
        for path, message in faults(spec):
            line, column = (root and locate(root, path)) or (None, None)
            problems.append(Problem(join_path(path), message, line, column))
        return (None if problems else spec), problems


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """The tree of a long document is all in use: to search it for garbage again and again took most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def schema_problems(document: Any) -> Iterator[Problem]:
    """What the JSON Schema has to say about a document of plain JSON values."""
    for error in sorted(_validator().iter_errors(document), key=lambda error: [str(p) for p in error.path]):
        yield Problem(join_path(list(error.absolute_path)), error.message)


@functools.cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a CDI spec, as shipped."""
    import json
    from importlib import resources

    text = resources.files("gpuiso.cdi").joinpath("schema/cdi.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@functools.cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(_inlined(schema(), schema()["$defs"]))


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    """``part`` with every ``$ref`` replaced by what it names: looking them up takes half of the validation's
    time.
    """
    if isinstance(part, list):
        return [_inlined(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    named = part.get("$ref", "").removeprefix("#/$defs/")
    return (_inlined(definitions[named], definitions) if named else {}) | {
        key: _inlined(value, definitions) for key, value in part.items() if key not in ("$ref", "$defs")
    }
