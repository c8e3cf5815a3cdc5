# SPDX-License-Identifier: Apache-2.0
"""What --container, --unit and --all examine, and how their findings are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuiso.doctor.engine import Report, examine
from gpuiso.doctor.finding import Evidence, Finding, Rule, Target
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.placing import merged
from gpuiso.errors import NotFound
from gpuiso.host.recorded import RecordedHost
from tests.records import UUIDS, RecordMaker

CONTAINER = "c0ffee" + "0" * 58
OTHER = "decade" + "0" * 58
SCOPE = f"/system.slice/docker-{CONTAINER}.scope"
WRONG = {"CUDA_VISIBLE_DEVICES": "GPU-33333333-3333-3333-3333-333333333333"}  # no GPU of this host


class Records(RecordMaker):
    """Records in which processes that were forked from each other cannot be told apart."""

    def add(self, pid: int, cgroup: str, env: dict[str, str] | None = None, *, namespace: str = "mnt:[2]") -> None:
        self.add_process(pid, env, cgroup=cgroup)
        path = f"/proc/{pid}/ns/mnt"
        self.nodes[path] = {"path": path, "type": "l", "target": namespace}
        self.nodes[f"/proc/{pid}/fd"] = {"path": f"/proc/{pid}/fd", "type": "d"}

    def inspect(self, *, pid: int = 0, name: str = "train", identity: str = CONTAINER) -> None:
        docker = self.tools.setdefault("docker.json", {"info": None, "containers": {}})
        docker["containers"][identity] = {"Name": f"/{name}", "State": {"Running": pid > 0, "Pid": pid}}

    def unit(self, name: str, properties: dict[str, Any] | None) -> None:
        self.tools.setdefault("systemd.json", {})[name] = properties


@pytest.fixture
def maker(tmp_path: Path) -> Records:
    return Records(tmp_path / "host")


def told(report: Report) -> list[tuple[str, Target]]:
    return [(finding.rule.id, finding.target) for finding in report.findings]


def test_a_subject_knows_its_container_and_unit(maker: Records) -> None:
    maker.inspect(pid=7)
    maker.add(7, SCOPE)
    maker.add(8, "/system.slice/train.service")
    machine = Machine(maker.host())
    inside, outside = (Subject(machine, pid, asked=True) for pid in (7, 8))
    assert inside.container is not None
    assert (inside.container.id, inside.container.name, inside.container.engine) == (CONTAINER, "train", "docker")
    assert inside.unit == f"docker-{CONTAINER}.scope"
    assert inside.target == Target(pid=7, container=CONTAINER)
    assert (outside.container, outside.unit) == (None, "train.service")
    assert outside.target == Target(pid=8, unit="train.service")


@pytest.mark.parametrize("word", ["train", "c0f", CONTAINER])
def test_a_container(maker: Records, word: str) -> None:
    maker.inspect(pid=7)
    maker.add(7, SCOPE, WRONG)
    maker.add(8, f"{SCOPE}/nested", {"CUDA_VISIBLE_DEVICES": UUIDS[0]})
    maker.add(9, "/system.slice/other.service", WRONG)
    report = examine(maker.host(), container=word)
    assert report.processes == (7, 8)
    assert [(rule, target.pid, target.container) for rule, target in told(report)] == [("GPU-UUID-STALE", 7, CONTAINER)]


def test_what_looks_alike_is_examined_once(maker: Records) -> None:
    maker.inspect(pid=7)
    for pid in (7, 8, 9):
        maker.add(pid, SCOPE, WRONG)
    maker.add(10, SCOPE, {**WRONG, "RANK": "1"})
    maker.add(11, SCOPE, WRONG, namespace="mnt:[3]")
    report = examine(maker.host(), container="train")
    assert report.processes == (7, 10, 11)
    (finding,) = report.findings  # told once, of all that were examined
    assert finding.target.pid == 7
    assert finding.evidence[-1] == Evidence("2 more processes of the same place", "the same: 10, 11")


def test_a_container_that_does_not_run(maker: Records) -> None:
    maker.inspect(pid=0)
    maker.add(7, "/system.slice/other.service")
    with pytest.raises(NotFound, match="docker container train is not running"):
        examine(maker.host(), container="train")
    with pytest.raises(NotFound, match="no container 'nosuch'"):
        examine(maker.host(), container="nosuch")


def test_a_unit(maker: Records) -> None:
    maker.unit("train.service", {"Id": "train.service", "ControlGroup": "/system.slice/train.service", "MainPID": 8})
    maker.add(7, "/system.slice/train.service", {"RANK": "0"})
    maker.add(8, "/system.slice/train.service/sub", WRONG)
    maker.add(9, "/system.slice/train.service.d", WRONG)
    host = maker.host()
    for name in ("train.service", "train"):
        report = examine(host, unit=name)
        assert report.processes == (8, 7)
        assert [(rule, target.pid, target.unit) for rule, target in told(report)] == [
            ("GPU-UUID-STALE", 8, "train.service")
        ]


def test_a_unit_that_systemd_does_not_tell_of(maker: Records) -> None:
    manager = "/user.slice/user-1000.slice/user@1000.service"
    maker.add(7, f"{manager}/app.slice/train.service", WRONG)
    report = examine(maker.host(), unit="train")
    assert [target.unit for _, target in told(report)] == ["train.service"]
    maker.add(8, "/user.slice/user-1001.slice/user@1001.service/app.slice/train.service")
    with pytest.raises(NotFound, match=r"names 2 units: /user\.slice/user-1000"):
        examine(maker.host(), unit="train")


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        (None, "no unit train.service"),
        ({"ControlGroup": "", "ActiveState": "failed"}, "unit train.service is failed"),
        ({"ControlGroup": "/system.slice/train.service", "ActiveState": "active"}, "unit train.service has no process"),
    ],
)
def test_a_unit_without_processes(maker: Records, properties: dict[str, Any] | None, says: str) -> None:
    maker.unit("train.service", properties)
    maker.add(7, "/system.slice/other.service")
    with pytest.raises(NotFound, match=says):
        examine(maker.host(), unit="train")


def test_all(maker: Records) -> None:
    maker.inspect(pid=7)
    maker.inspect(pid=20, name="idle", identity=OTHER)
    maker.inspect(pid=0, name="stopped", identity="e" * 64)
    maker.add(7, SCOPE)
    maker.add(8, SCOPE, WRONG)
    maker.add(20, f"/system.slice/docker-{OTHER}.scope")
    maker.add(30, "/system.slice/sshd.service")
    maker.add(31, "/system.slice/sshd.service")
    maker.add(40, "/user.slice", {"CUDA_VISIBLE_DEVICES": UUIDS[0]})
    report = examine(maker.host(), everything=True)
    assert report.processes == (7, 8, 20, 30, 40)
    assert [(target.pid, target.container) for _, target in told(report)] == [(8, CONTAINER)]
    assert examine(maker.host()).processes == (8, 40)


def test_containers_that_want_no_gpu_are_no_fault(tmp_path: Path) -> None:
    maker = Records(tmp_path / "host")
    maker.inspect(pid=7)
    maker.add_process(7, {"PATH": "/bin"}, cgroup=SCOPE, own_dev={"/dev/null": (1, 3)})
    report = examine(maker.host(), everything=True)
    assert (report.processes, report.findings) == ((7,), ())


class Vanishing(RecordedHost):
    """A host on which process 7 ends while it is examined."""

    asked = 0

    def read(self, path: str) -> bytes | None:
        if path == "/proc/7/environ":
            self.asked += 1
            if self.asked > 1:
                return None
        return super().read(path)


def test_a_container_that_ends_meanwhile(maker: Records) -> None:
    maker.inspect(pid=7)
    maker.add(7, SCOPE, WRONG)
    with pytest.raises(NotFound, match="docker container train ended while it was examined"):
        examine(Vanishing(str(maker.write())), container="train")


RULE = Rule("GPU-TEST", "error", "a title", "a summary")


def finding(pid: int | None, cause: str, **target: str) -> Finding:
    return RULE.finding(cause, evidence=[Evidence(f"/proc/{pid}", "x")], target=Target(pid=pid, **target))


def test_findings_of_different_places_stay_apart() -> None:
    found = [
        finding(7, "process 7 and GPU 77", container="a"),
        finding(8, "process 8 and GPU 77", container="b"),
        finding(9, "process 9 and GPU 77", unit="a"),
        finding(10, "process 10 and GPU 77"),
        finding(11, "process 11 and GPU 77"),
        finding(None, "the host", container="a"),
        finding(None, "the host", container="a"),
        finding(12, "process 12 and GPU 76", container="a"),
    ]
    assert merged(found) == found
    together = merged([*found, finding(13, "process 13 and GPU 77", container="a")])
    assert len(together) == len(found)
    assert together[0].evidence[-1] == Evidence("1 more process of the same place", "the same: 13")
