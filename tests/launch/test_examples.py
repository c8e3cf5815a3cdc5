# SPDX-License-Identifier: Apache-2.0
"""The examples: scripts are run with stand-ins for what they call, files are checked against what reads them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((EXAMPLES / "kubernetes/node-problem-detector.yaml").read_text())
)


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A directory for programs of a test; every call is a line of ``calls``."""
    (tmp_path / "python3").symlink_to(sys.executable)
    return tmp_path


def stand_in(place: Path, name: str, script: str) -> None:
    path = place / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >>{place}/calls\n{script}\n')
    path.chmod(0o755)


def run(place: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{place}:{os.environ['PATH']}"
    return subprocess.run(
        [str(EXAMPLES / script)], env={"PATH": path, **env}, capture_output=True, text=True, check=False
    )


def calls(place: Path) -> list[str]:
    return (place / "calls").read_text().splitlines()


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1), (2, 1)])
def test_the_prolog_drains_on_what_the_doctor_finds(stand_ins: Path, code: int, status: int) -> None:
    stand_in(stand_ins, "gpuiso", f"echo 'GPU-X: something'; exit {code}")
    done = run(stand_ins, "slurm/prolog.sh", SLURM_JOB_GPUS="0")
    assert done.returncode == status
    assert done.stderr == ("" if status == 0 else "gpuiso: GPU-X: something\n")
    assert calls(stand_ins) == ["gpuiso doctor --npd"]


def test_a_job_without_gpus_is_not_examined(stand_ins: Path) -> None:
    stand_in(stand_ins, "gpuiso", "exit 1")
    assert run(stand_ins, "slurm/prolog.sh").returncode == 0
    assert run(stand_ins, "slurm/epilog.sh").returncode == 0
    assert not (stand_ins / "calls").exists()


@pytest.mark.parametrize(("uid", "other_job", "reclaimed"), [(0, "", True), (1, "", False), (0, "echo 18", False)])
def test_the_epilog_ends_what_the_user_left(stand_ins: Path, uid: int, other_job: str, reclaimed: bool) -> None:
    mine = os.getuid() + uid
    used = json.dumps({"unleased": [{"gpu": "GPU-1", "pids": [os.getpid()]}, {"gpu": "GPU-2", "pids": [os.getpid()]}]})
    stand_in(stand_ins, "gpuiso", f"case $1 in leases) echo '{used}';; esac")
    stand_in(stand_ins, "squeue", f"echo 17; {other_job}")
    done = run(
        stand_ins,
        "slurm/epilog.sh",
        SLURM_JOB_GPUS="0",
        SLURM_JOB_UID=str(mine),
        SLURM_JOB_ID="17",
        SLURMD_NODENAME="node1",
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected = [f"gpuiso reclaim --pid {os.getpid()} --until kill"] if reclaimed else []
    assert [call for call in calls(stand_ins) if call.startswith("gpuiso reclaim")] == expected


def test_the_plugin_of_node_problem_detector() -> None:
    """Keys and limits of its docs/custom_plugin_monitor.md; the command is one that there is."""
    (text,) = (m["data"]["gpuiso.json"] for m in MANIFESTS if m["kind"] == "ConfigMap")
    config = json.loads(text)
    assert set(config) <= {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
    assert config["plugin"] == "custom"
    (rule,) = config["rules"]
    (condition,) = config["conditions"]
    assert rule["type"] == "permanent"
    assert rule["condition"] == condition["type"]
    assert int(rule["timeout"].rstrip("s")) <= int(config["pluginConfig"]["timeout"].rstrip("s"))
    host = str(EXAMPLES / "hosts/h200-x4")
    command = [sys.executable, "-m", "gpuiso", *rule["args"], "--from", host]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert len(done.stdout) <= config["pluginConfig"]["max_output_length"]


def test_the_manifests_fit_together() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in MANIFESTS}
    pod = by_kind["DaemonSet"]["spec"]["template"]["spec"]
    names = {volume["name"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == names
    assert pod["serviceAccountName"] == by_kind["ServiceAccount"]["metadata"]["name"]
    assert by_kind["ClusterRoleBinding"]["subjects"][0]["name"] == pod["serviceAccountName"]
    selector = by_kind["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= by_kind["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()
    assert pod["hostPID"] is True


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: str(manifest["kind"]))
def test_manifests_against_the_published_schemas(manifest: dict[str, Any]) -> None:
    """Kubernetes' own JSON schemas, which the package kubernetes-validate carries."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validate.validate(manifest, validate.latest_version(), strict=True)
    wrong = {**manifest, "metadata": {"name": 1}}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, validate.latest_version(), strict=True)


def test_compose_needs_a_lease() -> None:
    """Its structure alone: what reads it, docker compose, is not asked."""
    compose = yaml.safe_load((EXAMPLES / "docker/compose.yaml").read_text())
    (service,) = compose["services"].values()
    assert [re.sub(r"\$\{CUDA_VISIBLE_DEVICES:\?[^}]+}", "UUID", item) for item in service["devices"]] == [
        "nvidia.com/gpu=UUID"
    ]


@pytest.mark.parametrize("name", ["docker", "kubernetes", "run", "slurm", "systemd"])
def test_three_lines_say_what_it_is(name: str) -> None:
    text = (EXAMPLES / name / "README.md").read_text()
    assert len(text.splitlines()) == 3
    assert text.count("`") % 2 == 0
