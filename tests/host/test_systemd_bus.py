# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuiso.errors import Unknown
from gpuiso.host.systemd_bus import UNIT_NAME, SystemdBus

PROPERTIES = {
    "LoadState": {"type": "s", "data": "loaded"},
    "DeviceAllow": {"type": "a(ss)", "data": [["/dev/nvidia0", "rwm"], ["char-pts", "r"]]},
    "PrivateDevices": {"type": "b", "data": False},
    "MainPID": {"type": "u", "data": 7},
    "Nested": {"type": "v", "data": {"type": "a(ss)", "data": []}},
}


@pytest.fixture
def busctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A busctl that writes down how it was called; what it does then is for the test to append."""
    program = tmp_path / "busctl"
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def does(program: Path, script: str) -> None:
    with program.open("a") as file:
        file.write(script)


def prints(program: Path, properties: dict[str, Any]) -> None:
    message = json.dumps({"type": "a{sv}", "data": [properties]})
    does(program, f"cat <<'END'\n{message}\nEND\n")


def test_properties_are_plain_values(busctl: Path) -> None:
    prints(busctl, PROPERTIES)
    bus = SystemdBus()
    for _ in range(2):
        unit = bus.unit("getty@tty1.service")
        assert unit == {
            "LoadState": "loaded",
            "DeviceAllow": [["/dev/nvidia0", "rwm"], ["char-pts", "r"]],
            "PrivateDevices": False,
            "MainPID": 7,
            "Nested": [],
        }
    calls = (busctl.parent / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert "/org/freedesktop/systemd1/unit/getty_40tty1_2eservice org.freedesktop.DBus.Properties GetAll s" in calls[0]


def test_a_unit_that_is_not_there(busctl: Path) -> None:
    prints(busctl, {"LoadState": {"type": "s", "data": "not-found"}})
    assert SystemdBus().unit("nosuch.service") is None


def test_what_is_no_unit_name_is_not_asked_for(busctl: Path) -> None:
    for name in ("no such.service", "nothing", "a.service; reboot", "../x.service", "x" * 300 + ".service", ""):
        assert SystemdBus().unit(name) is None
        assert UNIT_NAME.fullmatch(name) is None
    assert not (busctl.parent / "calls").exists()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Call failed: Access denied' >&2; exit 1\n", "not permitted"),
        ("echo 'Failed to connect to bus: Connection refused' >&2; exit 1\n", "could not be asked"),
        ('echo \'{"type": "as", "data": ["x"]}\'\n', "cannot read"),
        ("echo '['\n", "cannot read"),
        ("exec sleep 60\n", "did not answer within 0.2 s"),
    ],
)
def test_no_answer_is_unknown(busctl: Path, script: str, why: str) -> None:
    does(busctl, script)
    with pytest.raises(Unknown, match=why):
        SystemdBus(deadline=0.2 if "sleep" in script else 10).unit("docker.service")


def test_a_manager_that_hangs_is_waited_for_once(busctl: Path) -> None:
    does(busctl, "exec sleep 60\n")
    bus = SystemdBus(deadline=0.2)
    for name in ("a.service", "b.service"):
        with pytest.raises(Unknown, match="did not answer"):
            bus.unit(name)
    assert len((busctl.parent / "calls").read_text().splitlines()) == 1


def test_without_busctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unknown, match="no busctl"):
        SystemdBus().unit("docker.service")
