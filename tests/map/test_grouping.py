# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuiso.doctor.map.grouping import Place, place_of
from gpuiso.doctor.map.model import Kind, Member
from gpuiso.host.containers import Container, Containers, container_in_path

ID = "0123456789abcdef" * 4
SHORT = ID[:12]


def place(path: str, hierarchy: str = "", **others: str) -> Place:
    return place_by({hierarchy: path, **others})


def place_by(cgroups: dict[str, str], names: dict[str, str] | None = None) -> Place:
    """The place of a process in these cgroups, on a host whose engines call their containers by ``names``."""
    found = [container_in_path(path) for path in cgroups.values()]
    known = [Container(c.id, "docker", (names or {}).get(c.id), cgroup=c.path) for c in found if c is not None]
    containers = Containers(tuple(known), {}, {c.cgroup: c for c in known if c.cgroup is not None})
    return place_of(Member(7, cgroups, {}, {}), containers)


@pytest.mark.parametrize(
    ("path", "top"),
    [
        (f"/system.slice/docker-{ID}.scope", None),
        (f"/docker/{ID}", None),
        (f"/docker/{ID}/init", f"/docker/{ID}"),
        (f"/machine.slice/libpod-{ID}.scope/container", f"/machine.slice/libpod-{ID}.scope"),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", None),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", None),
        (f"/kubepods/burstable/pod1/{ID}", None),
        (f"/system.slice/crio-{ID}.scope", None),
    ],
)
def test_containers(path: str, top: str | None) -> None:
    assert place(path) == Place("container", SHORT, ID, top or path)


USER = "/user.slice/user-1000.slice"


@pytest.mark.parametrize(
    ("path", "kind", "name", "below"),
    [
        ("/lxc.payload.web/init.scope", "container", "web", "/init.scope"),
        ("/lxc/web", "container", "web", ""),
        ("/machine.slice/machine-deb.scope/payload", "container", "deb", "/payload"),
        ("/system.slice/a.service/sub/deep", "unit", "a.service", "/sub/deep"),
        (f"/machine.slice/libpod-conmon-{ID}.scope", "unit", f"libpod-conmon-{ID}.scope", ""),
        (f"{USER}/user@1000.service/app.slice/jupyter.service", "unit", "jupyter.service", ""),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "job", "42", "/step_0/user/task_0"),
        ("/jobs/a", "cgroup", "/jobs/a", ""),
        ("/", "process", "7", ""),
        (f"{USER}/session-3.scope", "process", "7", ""),
        (f"{USER}/user@1000.service/init.scope", "process", "7", ""),
        (f"{USER}/user@1000.service/app.slice/vte-spawn-1.scope", "process", "7", ""),
        ("/init.scope", "process", "7", ""),
    ],
)
def test_the_rest(path: str, kind: Kind, name: str, below: str) -> None:
    found = place(path)
    assert (found.kind, found.name, found.cgroup) == (kind, name, path.removesuffix(below))


def test_hybrid_hosts_name_containers_in_v1() -> None:
    assert place("/", devices=f"/docker/{ID}").id == ID
    assert place("/system.slice/a.service", "name=systemd").name == "a.service"
    assert place_by({}).kind == "process"


def test_names_of_the_engine_are_used() -> None:
    assert place_by({"": f"/docker/{ID}"}, {ID: "web"}) == Place("container", "web", ID, f"/docker/{ID}")
