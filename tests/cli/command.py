# SPDX-License-Identifier: Apache-2.0
"""Running the command line inside the test, and as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from gpuiso.cli.main import main
from tests.support import REPOSITORY

__all__ = ["Result", "check_schema", "run", "start"]


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """``gpuiso ARGUMENTS`` in this process."""
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)


def start(*arguments: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Result:
    """``gpuiso ARGUMENTS`` as a process."""
    program = "import sys; from gpuiso.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@cache
def _registry() -> Any:
    from referencing import Registry, Resource

    directory = files("gpuiso.cli") / "schema"
    schemas = {
        entry.name: json.loads(entry.read_text()) for entry in directory.iterdir() if entry.name.endswith(".json")
    }
    return Registry().with_resources((name, Resource.from_contents(schema)) for name, schema in schemas.items())


def check_schema(found: dict[str, Any], name: str) -> None:
    """Fails unless ``found`` is what gpuiso/cli/schema/NAME.json says."""
    from jsonschema import Draft202012Validator

    registry = _registry()
    schema = registry.contents(f"{name}.json")
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, registry=registry).validate(found)
