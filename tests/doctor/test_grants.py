# SPDX-License-Identifier: Apache-2.0
"""Processes that use GPUs outside of the grants of /etc/gpuiso/policy.d."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuiso.doctor.engine import examine
from gpuiso.doctor.finding import Finding
from gpuiso.govern.registry import entry_path
from tests.records import UUIDS, RecordMaker

FILE = "/etc/gpuiso/policy.d/50-grants.yaml"
_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
FIRST, SECOND = ("/dev/nvidia0", *_SHARED), ("/dev/nvidia1", *_SHARED)
ID = "0123456789abcdef" * 4
BUNDLE = f"/run/containerd/io.containerd.runtime.v2.task/moby/{ID}"


@pytest.fixture
def maker(tmp_path: Path) -> RecordMaker:
    made = RecordMaker(tmp_path)
    made.files["/etc/passwd"] = "root:x:0:0::/:/bin/sh\nalice:x:1001:1001::/:/bin/sh\nbob:x:1002:1002::/:/bin/sh\n"
    made.files["/etc/group"] = "root:x:0:\nresearch:x:1001:\nusers:x:1002:bob\n"
    made.tools["nvml.json"] = {"driver_version": "580.159.04", "gpus": []}
    return made


def grants(maker: RecordMaker, *lines: str) -> None:
    maker.files[FILE] = "gpuiso: 1\ngrants:\n" + "".join(f"- {line}\n" for line in lines)
    maker.nodes[FILE] = {"path": FILE, "type": "f", "mode": "0644", "uid": 0, "gid": 0}


def found(maker: RecordMaker, pid: int | None = None) -> list[Finding]:
    report = examine(maker.host(), pid=pid)
    assert not [each for each in report.not_examined if "GPU-GRANT-OUTSIDE" in each.rules]
    return [each for each in report.findings if each.rule.id == "GPU-GRANT-OUTSIDE"]


def test_a_user_outside_of_every_grant(maker: RecordMaker) -> None:
    grants(maker, "{users: [alice], gpus: [0]}", "{groups: [research], most: 1}")
    maker.add_process(7, uid=1002, descriptors=FIRST)
    (finding,) = found(maker)
    assert finding.cause == f"The user bob uses GPU 0 ({UUIDS[0]}) with train (pid 7), and no grant is for it."
    assert finding.target.pid == 7
    assert [fix.command for fix in finding.fix] == ["gpuiso reclaim --pid 7", None]


@pytest.mark.parametrize(
    ("line", "nodes", "why"),
    [
        ("{users: [alice], gpus: [0]}", FIRST, None),
        ("{users: [alice], gpus: [0]}", SECOND, "only the GPUs 0"),
        ("{users: [1001], gpus: [0]}", SECOND, "only the GPUs 0"),
        ("{groups: [research], gpus: [0]}", SECOND, "only the GPUs 0"),
        ("{users: ['*'], gpus: [1]}", SECOND, None),
        ("{users: [alice]}", (*FIRST, *SECOND), None),
        ("{users: [alice], most: 1}", FIRST, None),
        ("{users: [alice], most: 1}", (*FIRST, "/dev/nvidia1"), "at most 1, and 2 are in use"),
        ("{slices: [batch.slice], gpus: [0]}", FIRST, None),
        ("{slices: [batch.slice], gpus: [0]}", SECOND, "only the GPUs 0"),
        ("{users: [bob]}", FIRST, "no grant is for the user alice"),
        ("{slices: [other.slice]}", FIRST, "no grant is for the user 1001"),
        ("{containers: [team=research]}", FIRST, None),
    ],
)
def test_what_a_grant_gives(maker: RecordMaker, line: str, nodes: tuple[str, ...], why: str | None) -> None:
    grants(maker, line)
    maker.add_process(7, uid=1001, cgroup="/batch.slice/batch-1.slice/job.scope", descriptors=nodes)
    for cgroup in ("/batch.slice", "/batch.slice/batch-1.slice"):
        maker.cgroups[cgroup] = {"device_programs": []}
    said = [each.says for finding in found(maker) for each in finding.evidence if "open" not in each.says]
    assert said == ([] if why is None else [why])


def test_how_many_counts_all_processes_of_the_user(maker: RecordMaker) -> None:
    grants(maker, "{users: [alice], most: 1}")
    maker.add_process(7, uid=1001, descriptors=FIRST)
    maker.add_process(8, uid=1001, descriptors=SECOND)
    maker.add_process(9, uid=0, descriptors=SECOND)
    assert [finding.target.pid for finding in found(maker)] == [7, 8]
    assert [finding.target.pid for finding in found(maker, 8)] == [8]


def test_root_and_monitoring_are_nobody(maker: RecordMaker) -> None:
    grants(maker, "{users: [alice]}")
    maker.add_process(7, uid=0, descriptors=FIRST)
    maker.add_process(8, uid=1002, descriptors=("/dev/nvidia0", "/dev/nvidiactl"))
    assert found(maker) == []
    grants(maker, "{users: [root], gpus: [1]}")
    assert [finding.target.pid for finding in found(maker)] == [7]


def test_without_grants_there_is_nothing_to_say(maker: RecordMaker) -> None:
    maker.add_process(7, uid=1002, descriptors=FIRST)
    assert found(maker) == []
    maker.files[FILE] = "gpuiso: 1\ngpu.max: 50000\n"
    assert found(maker) == []


def container(maker: RecordMaker, annotations: dict[str, str], uid: int = 0) -> None:
    maker.add_process(7, uid=uid, cgroup=f"/system.slice/docker-{ID}.scope", descriptors=FIRST)
    maker.cgroups["/system.slice"] = {"device_programs": []}
    maker.files[f"{BUNDLE}/config.json"] = json.dumps({"ociVersion": "1.0.2", "annotations": annotations})
    maker.files[f"{BUNDLE}/init.pid"] = "7"


@pytest.mark.parametrize("uid", [0, 1001])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["{containers: [team=research], gpus: [0]}"], None),
        (["{containers: [team=research], gpus: [1]}"], "no grant gives that"),
        (["{containers: [team=other]}", "{users: [alice]}"], "no grant is for it"),
        (["{users: [bob]}"], None),
    ],
)
def test_a_container_is_told_by_its_annotations(
    maker: RecordMaker, lines: list[str], expected: str | None, uid: int
) -> None:
    grants(maker, *lines)
    container(maker, {"team": "research"}, uid)
    findings = found(maker)
    if expected is None:
        assert findings == []
    else:
        (finding,) = findings
        assert finding.cause.startswith("The container ")
        assert finding.cause.endswith(f"{expected}.")
        assert finding.target.container == ID


def test_a_wrong_file_is_a_finding_of_the_host(maker: RecordMaker) -> None:
    grants(maker, "{users: [alice], mots: 1}")
    maker.add_process(7, uid=1002, descriptors=FIRST)
    report = examine(maker.host())
    (finding,) = [each for each in report.findings if each.rule.id.startswith("GPU-GRANT")]
    assert (finding.rule.id, finding.fix[0].command) == ("GPU-GRANT-FILE", f"gpuiso rules check {FILE}")
    assert f"{FILE}:3:20: unknown key 'mots'" in finding.cause


def test_a_user_that_only_nss_knows(maker: RecordMaker) -> None:
    grants(maker, "{users: [carol]}")
    maker.add_process(7, uid=70001, descriptors=FIRST)
    report = examine(maker.host())
    assert [each.what for each in report.not_examined if "GPU-GRANT-OUTSIDE" in each.rules] != []


def test_a_record_has_no_names_of_people(maker: RecordMaker) -> None:
    grants(maker, "{users: [alice]}")
    maker.files.pop(FILE)
    maker.add_process(7, uid=1002, descriptors=FIRST)
    report = examine(maker.host())
    assert [each.what for each in report.not_examined if "GPU-GRANT-OUTSIDE" in each.rules] == [FILE]


LEASE = {
    "format": "gpuiso-lease/1",
    "id": "1",
    "name": "job",
    "units": [[UUIDS[0], UUIDS[0]]],
    "share": False,
    "user": 1001,
    "user_name": "alice",
    "command": ["train"],
    "pid": 7,
    "taken": 0.0,
    "granted": 0,
    "cgroup": {"mount": "/sys/fs/cgroup", "path": "/batch.slice/job", "inode": 1, "boot": "b"},
    "gpu_max": "50000 100000",
}


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({}, "gpu.max at most 50000 100000, and none is held"),
        ({entry_path("/batch.slice"): '{"cgroup": "/batch.slice", "gpu.max": "20000 100000"}'}, None),
        ({entry_path("/batch.slice/job"): '{"cgroup": "/batch.slice/job", "gpu.max": "50000 100000"}'}, None),
        (
            {entry_path("/batch.slice"): '{"cgroup": "/batch.slice", "gpu.max": "80000 100000"}'},
            "gpu.max at most 50000 100000, and 80000 100000 is held",
        ),
        ({entry_path("/batch.slice"): "{"}, "gpu.max at most 50000 100000, and none is held"),
        ({"/run/gpuiso/leases/1.lease": json.dumps(LEASE)}, None),
        (
            {"/run/gpuiso/leases/1.lease": json.dumps(LEASE).replace("/batch.slice/job", "/other")},
            "gpu.max at most 50000 100000, and none is held",
        ),
    ],
)
def test_a_share_that_is_granted_is_to_be_held(maker: RecordMaker, held: dict[str, str], why: str | None) -> None:
    grants(maker, "{users: [alice], gpu.max: 50000 100000}")
    maker.add_process(7, uid=1001, cgroup="/batch.slice/job", descriptors=FIRST)
    maker.cgroups["/batch.slice"] = {"device_programs": []}
    entries = {entry_path(level) for level in ("/batch.slice", "/batch.slice/job")}
    (maker.directory / "absent.json").write_text(json.dumps(sorted(entries - set(held))))
    maker.files |= held
    maker.files.setdefault("/run/gpuiso/leases/lock", "")
    said = [each.says for finding in found(maker) for each in finding.evidence if "open" not in each.says]
    assert said == ([] if why is None else [why])
    grants(maker, "{users: [alice], gpu.max: 50000 100000}", "{groups: [research]}")
    assert found(maker) == []
