# SPDX-License-Identifier: Apache-2.0
"""Whatever a record holds, the doctor answers or says in a sentence why not; nothing else leaves it."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuiso.doctor.engine import examine
from gpuiso.errors import GpuisoError
from gpuiso.host import open_host
from tests.doctor.test_recorded_hosts import CASES, HOSTS

_WORDS = [b"", b"9" * 5000, b"-1", b"\0", b"\xff\xfe", b":", b"=", b"junk", b"\n", b" ", b"0x", b"[", b"(", b"\xd9\xa3"]
_VALUES: list[Any] = [None, 5, -1, True, 1.5, "", "x", [], {}, [5], ["x"], {"a": 5}, [[1]], 10**17]


def _files(record: Path) -> list[Path]:
    return sorted(path for path in record.rglob("*") if path.is_file() and path.name != "record.json")


def _mutated_text(draw: st.DrawFn, data: bytes) -> bytes:
    """One line or one word of it replaced, dropped or doubled."""
    separator = draw(st.sampled_from([b"\n", b" ", b"\t", b":", b"\0"]))
    parts = data.split(separator)
    place = draw(st.integers(0, len(parts) - 1))
    parts[place : place + 1] = draw(st.sampled_from([[], [parts[place]] * 2, *([word] for word in _WORDS)]))
    return separator.join(parts)


def _mutated_json(draw: st.DrawFn, value: Any) -> Any:
    """One value somewhere in it replaced."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(value)))
        return {**value, name: _mutated_json(draw, value[name])}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _mutated_json(draw, value[place]), *value[place + 1 :]]
    return draw(st.sampled_from(_VALUES))


@st.composite
def records(draw: st.DrawFn) -> tuple[Path, dict[Path, bytes], int | None]:
    """A recorded host, what some of its files became, and a process to ask about."""
    name = draw(st.sampled_from(CASES))
    record = HOSTS / name / "faulty"
    files = _files(record)
    changed: dict[Path, bytes] = {}
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(files))
        data = changed.get(path, path.read_bytes())
        if path.suffix == ".json" and draw(st.booleans()):
            try:
                changed[path] = json.dumps(_mutated_json(draw, json.loads(data))).encode()
            except ValueError:
                changed[path] = _mutated_text(draw, data)
        else:
            changed[path] = _mutated_text(draw, data)
    asked = json.loads((HOSTS / name / "case.json").read_text())["pid"]
    return record, changed, asked if draw(st.booleans()) else None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(records())
def test_only_answers_and_errors_leave_the_doctor(case: tuple[Path, dict[Path, bytes], int | None]) -> None:
    record, changed, pid = case
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "record"
        shutil.copytree(record, copy)
        for path, data in changed.items():
            (copy / path.relative_to(record)).write_bytes(data)
        with contextlib.suppress(GpuisoError):
            assert json.dumps(examine(open_host(str(copy)), pid=pid).as_json())
