# SPDX-License-Identifier: Apache-2.0
"""``gpuiso hook inject`` refuses what the hook would refuse when the container starts, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuiso.gpu.inventory import build_inventory
from gpuiso.hook.errors import HookError
from gpuiso.hook.tables import GpuTable
from gpuiso.hookset.tables import gpu_document
from gpuiso.host import open_host
from tests.cli.command import run
from tests.support import REPOSITORY

HOSTS = [
    *(REPOSITORY / "tests/data/hosts" / case for case in ("mig-stale-uuid/healthy", "amd-double-mask/faulty")),
    *(REPOSITORY / "tests/data/hosts" / case for case in ("intel-mask/faulty", "mode-0600-on-the-host/faulty")),
    REPOSITORY / "examples/hosts/h200-x4",
]
UUID = "98b0e715-3bf7-c370-6d85-c524e4400665"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text('{"ociVersion": "1.0.2"}')
    return path


def table_of(host: Path) -> GpuTable:
    opened = open_host(str(host))
    return GpuTable(gpu_document(opened, build_inventory(opened)), "gpus.json")


@pytest.mark.parametrize("host", HOSTS, ids=lambda path: path.parent.name)
def test_every_name_of_the_hooks_table_is_taken(capsys: pytest.CaptureFixture[str], config: Path, host: Path) -> None:
    names = list(table_of(host).names)
    assert names
    asked = ", ".join(names)
    shown = run(capsys, "hook", "inject", str(config), "--gpus", asked)
    (hook,) = shown.json["hooks"]["createRuntime"]
    assert hook["args"][1:] == ["createRuntime", "--gpus", asked]


@pytest.mark.parametrize(
    "option",
    [
        *(("--gpus", value) for value in ("all", " none ", "0, 1\n", f"GPU-{UUID}", f"MIG-GPU-{UUID}/1/0", "amd:0")),
        *(("--gpu-max", value) for value in ("max", "max 100000", "50000", "50000 100000")),
        *(("--policy", value) for value in ("p", "half-a-gpu", "v1.2")),
    ],
)
def test_what_the_hook_reads_is_taken(
    capsys: pytest.CaptureFixture[str], config: Path, option: tuple[str, str]
) -> None:
    assert run(capsys, "hook", "inject", "--write", str(config), *option).code == 0
    assert json.loads(config.read_text())["hooks"]["createRuntime"][0]["args"][2:] == list(option)


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ("", "'' is no name"),
        ("0,", "'' is no name"),
        ("all,0", "'all' stands alone"),
        ("0,none", "'none' stands alone"),
        ("ALL", "'ALL' is no name"),
        ("-1", "'-1' is no name"),
        ("00", "'00' is no name"),
        ("0-3", "'0-3' is no name"),
        ("0 1", "'0 1' is no name"),
        ("nvidia", "'nvidia' is no name"),
        ("\N{ARABIC-INDIC DIGIT ONE}", "is no name"),
        ("GPU-98b0", "a whole UUID"),
        (f"GPU-{UUID.upper()}", "is no name"),
        ("01:00.0", "'01:00.0' is no name"),
        ("mig:1g.18gb", "is no name"),
    ],
)
def test_no_gpu_of_any_host(capsys: pytest.CaptureFixture[str], config: Path, gpus: str, says: str) -> None:
    refuses(capsys, config, f"--gpus={gpus}", says)
    with pytest.raises(HookError):
        table_of(HOSTS[-1]).select(gpus)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--gpu-max=", "expected QUOTA PERIOD"),
        ("--gpu-max=50000/100000", "write it as cpu.max does"),
        ("--gpu-max=200000 100000", "more than the period"),
        ("--gpu-max=1", "out of range"),
        ("--gpu-max=half", "expected a whole number"),
        ("--policy=", "is no name of a policy"),
        ("--policy=../p", "is no name of a policy"),
        ("--policy=.hidden", "is no name of a policy"),
        (f"--policy={'p' * 201}", "is no name of a policy"),
        ("--policy=a\tb", "is no name of a policy"),
        ("--policy=we ird", "must start and end with a letter or digit"),
    ],
)
def test_no_share_and_no_policy(capsys: pytest.CaptureFixture[str], config: Path, option: str, says: str) -> None:
    refuses(capsys, config, option, says)


def test_one_bad_value_among_good_ones(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    refuses(capsys, config, "--gpus=x", "'x' is no name", "--policy=p", "--gpu-max=max")


def refuses(capsys: pytest.CaptureFixture[str], config: Path, option: str, says: str, *more: str) -> None:
    before = config.read_text()
    refused = run(capsys, "hook", "inject", "--write", str(config), option, *more)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.err
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]
    assert config.read_text() == before
