# SPDX-License-Identifier: Apache-2.0
"""The verb ``gpuiso visible``, on recorded hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from gpuiso.cli.visible import Api, visible
from gpuiso.errors import NotFound, UsageError
from tests.records import UUIDS, RecordMaker
from tests.support import REPOSITORY

H200 = str(REPOSITORY / "examples" / "hosts" / "h200-x4")
PID = 4711


@pytest.fixture
def maker(tmp_path: Path) -> RecordMaker:
    return RecordMaker(tmp_path)


def answer(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, dict[str, Any]]:
    code = visible(as_json=True, **options)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(found) == {"gpuiso", "cuInit", "gpus", "ignored", "warnings"}
    assert found["gpuiso"] == "visible/1"
    return code, found


def test_the_recorded_h200_host(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, record=H200, env=["CUDA_VISIBLE_DEVICES=0,4,1"])
    assert code == 0
    assert found["cuInit"] == 0
    assert found["gpus"] == [
        {"index": 0, "physical": 0, "uuid": "GPU-98b0e715-3bf7-c370-6d85-c524e4400665", "node": "/dev/nvidia0"}
    ]
    assert found["ignored"] == [
        {"token": "4", "why": "there is no device 4: this process counts 4, from 0 to 3"},
        {"token": "1", "why": "it comes after '4', which ends the list"},
    ]
    assert found["warnings"] == []


def test_a_denied_gpu_renumbers_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    for node in ("nvidia1", "/dev/nvidia1"):
        code, found = answer(capsys, record=H200, deny=[node], env=["CUDA_VISIBLE_DEVICES=1"])
        assert (code, [gpu["physical"] for gpu in found["gpus"]]) == (0, [2])


@pytest.mark.parametrize(
    ("deny", "env", "code", "cu_init"),
    [
        (["nvidiactl"], [], 1, 100),
        (["nvidia-uvm"], [], 1, 999),
        (["nvidia0", "nvidia1", "nvidia2", "nvidia3"], [], 1, 100),
        (["nvidia1"], ["CUDA_VISIBLE_DEVICES=GPU-759a6656"], 1, 100),
        (["nvidia1"], ["CUDA_VISIBLE_DEVICES="], 0, 100),
        ([], ["CUDA_VISIBLE_DEVICES="], 0, 100),
        ([], ["CUDA_VISIBLE_DEVICES=0,0"], 0, 101),
        (["nvidia-uvm-tools"], [], 0, 0),
    ],
)
def test_exit_1_means_denied(
    capsys: pytest.CaptureFixture[str], deny: list[str], env: list[str], code: int, cu_init: int
) -> None:
    got, found = answer(capsys, record=H200, deny=deny, env=env)
    assert (got, found["cuInit"]) == (code, cu_init)


def test_the_variables_of_whoever_asks_do_not_reach_a_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    _, found = answer(capsys, record=H200)
    assert [gpu["physical"] for gpu in found["gpus"]] == [0, 1, 2, 3]


def test_a_process_of_a_record(maker: RecordMaker, capsys: pytest.CaptureFixture[str]) -> None:
    maker.add_process(PID, {"CUDA_VISIBLE_DEVICES": "1", "HOME": "/root"})
    record = str(maker.write())
    code, found = answer(capsys, record=record, pid=PID)
    assert (code, found["gpus"]) == (
        0,
        [{"index": 0, "physical": 1, "uuid": UUIDS[1], "node": "/dev/nvidia1"}],
    )
    _, what_if = answer(capsys, record=record, pid=PID, env=["CUDA_VISIBLE_DEVICES=0"])
    assert [gpu["physical"] for gpu in what_if["gpus"]] == [0]


def test_what_a_process_cannot_open_is_taken_away_first(maker: RecordMaker, capsys: pytest.CaptureFixture[str]) -> None:
    control = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (238, 0)}
    maker.add_process(PID, {"CUDA_VISIBLE_DEVICES": "0"}, own_dev={**control, "/dev/nvidia1": (195, 1)})
    code, found = answer(capsys, record=str(maker.write()), pid=PID)
    assert (code, [gpu["physical"] for gpu in found["gpus"]]) == (0, [1])
    assert "GPU 0 is 195:0, and /dev/nvidia0 does not exist" in found["warnings"]


def test_a_probe_decides_where_there_is_one(maker: RecordMaker, capsys: pytest.CaptureFixture[str]) -> None:
    maker.add_process(PID)
    record = maker.write()
    (record / "probes.json").write_text(json.dumps({str(PID): {"/dev/nvidia-uvm": {"rw": "EPERM"}}}))
    code, found = answer(capsys, record=str(record), pid=PID)
    assert (code, found["cuInit"], found["gpus"]) == (1, 999, [])
    assert f"pid {PID} cannot open /dev/nvidia-uvm: fails with EPERM" in found["warnings"]


def test_access_that_nobody_recorded_is_said(maker: RecordMaker, capsys: pytest.CaptureFixture[str]) -> None:
    maker.add_process(PID)
    maker.cgroups = {"/": {"device_programs": []}, "/job": {"device_programs": None}}
    code, found = answer(capsys, record=str(maker.write()), pid=PID)
    assert (code, len(found["gpus"])) == (0, 2)
    assert any(text.startswith(f"device access of pid {PID} not examined") for text in found["warnings"])


def test_a_process_that_is_not_there(maker: RecordMaker) -> None:
    maker.add_process(PID)
    for record in (str(maker.write()), H200):
        with pytest.raises(NotFound, match=f"no process 12 on {record}"):
            visible(record=record, pid=12)
    with pytest.raises(NotFound, match=f"no process {2**22 + 1}"):
        visible(pid=2**22 + 1)  # beyond what pid_max can be


@pytest.mark.parametrize("text", ["CUDA_VISIBLE_DEVICES", "=1", ""])
def test_a_variable_without_a_value_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is not NAME=VALUE"):
        visible(record=H200, env=[text])


def test_a_node_that_no_gpu_has_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = answer(capsys, record=H200, deny=["nvidia9"])
    assert found["warnings"] == ["--deny nvidia9: no GPU of this host has that node"]


def test_another_vendors_interface(capsys: pytest.CaptureFixture[str]) -> None:
    for api, vendor in ((Api.HIP, "AMD"), (Api.OPENCL, "AMD"), (Api.LEVEL_ZERO, "Intel")):
        code, found = answer(capsys, record=H200, api=api)
        assert (code, found["cuInit"], found["gpus"]) == (0, 100, [])
        assert found["warnings"] == [f"{vendor}'s driver holds no GPU of this host"]


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ("2,0", "a container would get GPUs 0, 2, counted from 0 inside"),
        ("void", "a container would get no GPU"),
        ("7", "a container would not start with it: unknown device '7'"),
    ],
)
def test_a_variable_of_the_container_runtime(capsys: pytest.CaptureFixture[str], value: str, outcome: str) -> None:
    _, found = answer(capsys, record=H200, env=[f"NVIDIA_VISIBLE_DEVICES={value}"])
    assert len(found["gpus"]) == 4
    assert found["warnings"][0].endswith(outcome)


def test_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    visible(record=H200, env=["CUDA_VISIBLE_DEVICES=3,x"], deny=["nvidia0"])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "CUDA shows no device: cuInit returns 100 (CUDA_ERROR_NO_DEVICE)",
        "Ignored",
        "  '3' in CUDA_VISIBLE_DEVICES: there is no device 3: this process counts 3, from 0 to 2 now that 1 of 4 are"
        " denied",
        "  'x' in CUDA_VISIBLE_DEVICES: it comes after '3', which ends the list",
    ]
    visible(record=H200, env=["CUDA_VISIBLE_DEVICES=3"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["CUDA", "shows", "1", "device"],
        ["index", "on", "the", "host", "UUID", "node"],
        ["0", "GPU", "3", "GPU-8829a952-49f5-12c1-7b8e-d411fa644d35", "/dev/nvidia3"],
    ]


def test_this_host_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys)
    assert code in (0, 1)
    assert (found["cuInit"] == 0) == bool(found["gpus"])


def test_the_options_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command("visible")(visible)
    arguments = ["--from", H200, "--deny", "nvidia0", "--env", "CUDA_VISIBLE_DEVICES=0", "--env", "A=b", "--json"]
    assert app(args=arguments, standalone_mode=False) == 0
    assert [gpu["physical"] for gpu in json.loads(capsys.readouterr().out)["gpus"]] == [1]


def test_the_page_shows_what_the_program_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    page = (REPOSITORY / "docs" / "visibility.md").read_text()
    command, *expected = page.split("$ ", 1)[1].split("```")[0].splitlines()
    app = typer.Typer()
    app.command("visible")(visible)
    app(args=command.removeprefix("gpuiso visible ").split(), standalone_mode=False)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == expected
