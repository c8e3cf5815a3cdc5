# SPDX-License-Identifier: Apache-2.0
"""Grants of policy.d, compiled and held by the hook on a real cgroup."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from typing import Any

import pytest

from gpuiso.govern.registry import registered
from gpuiso.hook import cgroup
from gpuiso.hook import grants as grants_module
from gpuiso.hook.errors import HookError
from gpuiso.policy import slices
from tests.hook.test_runtime import FULL, NO_FULL, NULL, TABLE, ZERO, Container, container
from tests.tiers import requires

pytestmark = requires("kernel")
__all__ = ["container"]

RESEARCH = {"team": "research"}


def grant(*gpus: str, **more: Any) -> dict[str, Any]:
    return {
        "place": "p.yaml:3",
        "slices": [],
        "containers": [["team", "research"]],
        "gpus": list(gpus),
        "most": None,
        "gpu.max": None,
    } | more


@pytest.fixture(autouse=True)
def _memory_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes that stand for GPUs have the major of /dev/null."""
    majors = grants_module._gpu_majors() | {1}
    monkeypatch.setattr(grants_module, "_gpu_majors", lambda: majors)


def put(container: Container, *grants: dict[str, Any], error: str | None = None) -> None:
    document = {"gpuiso": "hook-grants/1", "error": error, "grants": list(grants)}
    (container.tables / "grants.json").write_text(json.dumps(document))


def allow(container: Container, *minors: int | None, access: str = "rwm") -> None:
    """The runtime's rules, and the nodes that it makes; None: everything, as for a privileged container."""
    rules: list[dict[str, Any]] = [{"allow": False, "access": "rwm"}]
    devices = []
    for minor in minors:
        if minor is None:
            rules.append({"allow": True, "access": "rwm"})
        else:
            number = {"type": "c", "major": 1, "minor": minor}
            rules.append({"allow": True, "access": access, **number})
            devices.append({"path": f"/dev/nvidia{minor}", **number})
    linux = {"devices": devices, "resources": {"devices": rules}}
    (container.base / "config.json").write_text(json.dumps({"linux": linux}))


def test_what_is_granted_stays_and_the_rest_goes(container: Container) -> None:
    put(container, grant("zero"))
    allow(container, 5)
    container.start(labels=RESEARCH)
    assert container.opens(NULL, ZERO, FULL) == ["0", "0", "EPERM"]


def test_who_is_given_what_no_grant_gives_does_not_start(container: Container) -> None:
    put(container, grant("zero"))
    allow(container, 5, 7)
    with pytest.raises(HookError, match=r"^it may not have zero, full: p\.yaml:3: only the GPUs zero$"):
        container.start(labels=RESEARCH)
    with pytest.raises(HookError, match=r"it may not have zero, full: no grant in policy\.d is for this container"):
        container.start(labels={"team": "other"})
    assert container.programs() == ()
    # What it was given and then leaves is not asked for.
    container.start(gpus="0", labels=RESEARCH)
    assert container.opens(ZERO, FULL) == ["0", "EPERM"]


def test_a_container_without_gpus_starts_and_gets_none(container: Container) -> None:
    put(container, grant("zero"))
    allow(container)
    container.start()
    assert container.opens(NULL, ZERO, FULL) == ["0", "EPERM", "EPERM"]


@pytest.mark.parametrize(
    ("labels", "opens"), [(RESEARCH, ["0", "0", "EPERM"]), ({}, ["0", "EPERM", "EPERM"])], ids=["granted", "not"]
)
def test_a_privileged_container_is_left_what_is_granted(
    container: Container, labels: dict[str, str], opens: list[str]
) -> None:
    put(container, grant("zero"))
    allow(container, None)
    container.start(labels=labels)
    assert container.opens(NULL, ZERO, FULL) == opens


def test_how_many(container: Container) -> None:
    put(container, grant("zero", "full", most=1))
    allow(container, 5, 7)
    with pytest.raises(HookError, match=r"at most 1 GPU$"):
        container.start(labels=RESEARCH)
    allow(container, None)
    with pytest.raises(HookError, match=r"all GPUs \(it is priv.*at most 1 GPU; the annotation gpuiso\.gpus says"):
        container.start(labels=RESEARCH)
    container.start(gpus="1", labels=RESEARCH)
    assert container.opens(ZERO, FULL) == ["EPERM", "0"]


def test_a_second_grant_helps(container: Container) -> None:
    put(container, grant("zero"), grant("full", containers=[["*", None]]))
    allow(container, 7, access="r")
    container.start(labels=RESEARCH)
    assert container.opens(ZERO, FULL) == ["EPERM", "0"]


def test_a_slice_counts(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    put(container, grant("zero", containers=[], slices=["batch.slice"]))
    allow(container, 5)
    with pytest.raises(HookError, match="no grant"):
        container.start()
    monkeypatch.setattr(slices, "slices_of", lambda path: ["batch.slice"] if path == container.path else [])
    container.start()
    assert container.opens(ZERO, FULL) == ["0", "EPERM"]


def test_gpu_max_is_the_smallest(container: Container) -> None:
    put(container, grant("zero", **{"gpu.max": "50000 100000"}))
    allow(container, 5)
    for asked, held in ((None, "50000 100000"), ("20000", "20000 100000"), ("90000", "50000 100000")):
        named = {} if asked is None else {"gpu_max": asked}
        container.start(labels=RESEARCH, **named)
        assert [str(share) for share in registered(str(container.registry)).values()] == [held]


def test_grants_that_could_not_be_compiled_grant_nothing(container: Container) -> None:
    put(container, error="p.yaml:7:3: unknown key 'mots'")
    allow(container, 5)
    with pytest.raises(HookError, match=r"it may not have zero: p\.yaml:7:3: unknown key"):
        container.start(labels=RESEARCH)
    allow(container, None)
    container.start(labels=RESEARCH)
    assert container.opens(NULL, ZERO) == ["0", "EPERM"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"gpuiso": "hook-grants/1"}', '{"gpuiso": "hook-grants/1", "error": null, "grants": [5]}'],
)
def test_damaged_grants_let_nothing_start(container: Container, content: str) -> None:
    (container.tables / "grants.json").write_text(content)
    allow(container, 5)
    with pytest.raises(HookError, match=r"grants\.json"):
        container.start()
    allow(container)
    container.start()


def test_grants_of_others_are_not_obeyed(container: Container) -> None:
    put(container, grant("zero", "full"))
    allow(container, 5)
    container.tables.chmod(0o777)
    with pytest.raises(HookError, match="can be written by others than root"):
        container.start(labels=RESEARCH)
    allow(container)
    container.start(labels=RESEARCH)


@pytest.mark.parametrize("fault", ["v1", "stale", "gone"])
def test_what_cannot_be_held_stops_only_who_asks_for_a_gpu(
    container: Container, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(container, grant("zero"))
    if fault == "v1":

        def refuse() -> str:
            raise HookError("device access of this host is decided by cgroup v1")

        monkeypatch.setattr(cgroup, "decided_by_v1", lambda: True)
        monkeypatch.setattr(cgroup, "_mount_point", refuse)
    elif fault == "stale":
        (container.tables / "gpus.json").write_text(json.dumps(TABLE | {"drivers": {"mem": 77}}))
    else:
        (container.tables / "gpus.json").unlink()
    allow(container)
    container.start(labels=RESEARCH)
    allow(container, None)
    container.start(labels=RESEARCH)
    assert container.programs() == ()
    allow(container, 5)
    with pytest.raises(HookError, match={"v1": "cgroup v1", "stale": "out of date", "gone": "not known"}[fault]):
        container.start(labels=RESEARCH)


@pytest.mark.parametrize(
    ("device", "asks"),
    [
        ({"path": "/dev/nvidia0", "major": 195, "minor": 0}, True),
        ({"path": "/dev/gpu", "major": 195, "minor": 3}, True),
        ({"path": "/dev/./nvidia3", "major": 195, "minor": 3}, True),
        ({"path": "/dev/dri/renderD128", "major": 226, "minor": 128}, True),
        ({"path": "/dev/fuse", "major": 10, "minor": 229}, False),
        ({"path": "/dev/nvidia0"}, False),  # no numbers: no runtime makes it
    ],
)
@pytest.mark.parametrize("where", ["devices", "rules"])
def test_before_anything_was_compiled(
    container: Container, device: dict[str, Any], asks: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a boot, when the refresh failed: whatever may stand in policy.d, it may limit containers."""
    sources = container.base / "policy.d"
    device = {"type": "c"} | device
    rule = {"allow": True, "access": "rw"} | {name: value for name, value in device.items() if name != "path"}
    rules = [{"allow": False, "access": "rwm"}] + ([rule] if where == "rules" else [])
    linux = {"devices": [device] if where == "devices" else [], "resources": {"devices": rules}}
    (container.base / "config.json").write_text(json.dumps({"linux": linux}))

    refused = re.escape(f"the grants of {sources} are not compiled; run gpuiso hook refresh")

    def expect(starts: bool) -> None:
        with nullcontext() if starts else pytest.raises(HookError, match=refused):
            container.start()

    (container.tables / "gpus.json").rename(container.tables / "kept")
    expect(True)  # there is no policy.d
    sources.mkdir()
    expect(True)
    (sources / ".swp").touch()
    expect(True)
    (sources / "50-x").symlink_to("/none")
    expect(not asks)
    with nullcontext() if not asks else pytest.raises(HookError, match=refused):
        container.start(gpu_max="50000")  # asking for something else is no way around it
    monkeypatch.setattr(cgroup, "is_root", lambda: False)
    expect(True)
    monkeypatch.setattr(cgroup, "is_root", lambda: True)
    (container.tables / "kept").rename(container.tables / "gpus.json")
    expect(True)  # compiled, and nothing limits containers
    (container.tables / "gpus.json").unlink()
    shutil.rmtree(sources)
    sources.symlink_to("/none")
    expect(not asks)


def test_a_rootless_engine_is_not_stopped(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    put(container, grant("zero"))
    allow(container, 7)
    monkeypatch.setattr(cgroup, "is_root", lambda: False)
    container.start(labels=RESEARCH)
    with pytest.raises(HookError, match="need root of the host"):
        container.start(gpus="0", labels=RESEARCH)
    assert container.programs() == ()


def test_the_command_lines_policy_is_held_to_them_too(container: Container) -> None:
    put(container, grant("full"))
    container.attach(NO_FULL)
    allow(container)
    container.start("--policy", "null", labels=RESEARCH)
    assert container.opens(NULL, ZERO, FULL) == ["0", "EPERM", "EPERM"]
