# SPDX-License-Identifier: Apache-2.0
"""What is compiled for the hook, as the hook reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuiso.cdi.rules import faults
from gpuiso.devfilter.interpret import Access, interpret
from gpuiso.errors import FailedAndUndone
from gpuiso.hook.runtime import GRANTS_FILE
from gpuiso.hook.tables import DIRECTORY, gpu_table, hook_policy
from gpuiso.hookset import known as known_module
from gpuiso.hookset.definitions import add_hooks, policy_spec
from gpuiso.hookset.known import known
from gpuiso.hookset.tables import refresh
from tests.cdi.fake_host import FakeHost, node
from tests.cdi.nvidia_host import DEVICES, nvidia_host, uuid
from tests.support import make_fake_tree

GRANTS_NAME = os.path.basename(GRANTS_FILE)
POLICIES = {
    "one.yaml": "gpuiso: 1\ndevices:\n- allow default-nodes\n- allow gpu 0\ngpu.max: 50000 100000\n",
    "hole.rules": "allow a\ndeny c 195:1 rw\n",
    "share.json": '{"gpuiso": 1, "gpu.max": "max"}',
    "memory.yaml": "gpuiso: 1\nmemory.max: 1G\n",
    "wrong.yaml": "gpuiso: 1\ndevices: [allow gpu 7]\n",
    "twice.yaml": "gpuiso: 1\n",
    "twice.rules": "deny a\n",
    "notes.txt": "not a policy",
    ".hidden.yaml": "x",
}


def fake_host(gpus: int = 2) -> FakeHost:
    """With this machine's numbers for the drivers that it has: the hook compares."""
    lines = Path("/proc/devices").read_text().split("Block")[0].splitlines()
    here = {
        name: int(number) for number, name in (line.split() for line in lines if line[:1] == " " or line[:1].isdigit())
    }
    return nvidia_host(gpus, devices={name: here.get(name, major) for name, major in DEVICES.items()})


def allows(program: bytes | None, major: int, minor: int, mask: int = 6) -> bool:
    assert program is not None
    return interpret(program, Access("c", major, minor, mask)).value == "allow"


@pytest.fixture
def policies(tmp_path: Path) -> str:
    return str(make_fake_tree(tmp_path / "policy.d", POLICIES))


def test_policies_become_what_the_hook_reads(tmp_path: Path, policies: str) -> None:
    directory = str(tmp_path / "hook")
    done = refresh(fake_host(), policies, directory)
    assert done.policies == ("hole", "one", "share")
    said = sorted(error.message.removeprefix(f"{policies}/") for error in done.errors)
    assert [line.split(":")[0] for line in said] == ["memory.yaml", "twice.yaml", "wrong.yaml"]
    assert "the hook holds device rules and gpu.max; memory.max is the engine's" in said[0]
    assert "there is no GPU 7 here" in said[2]

    one = hook_policy("one", directory)
    assert (one.gpu_max, allows(one.program, 195, 0), allows(one.program, 195, 1)) == ("50000 100000", True, False)
    assert one.systemd is not None
    assert (one.systemd[0], ("/dev/char/195:0", "rwm") in one.systemd[1]) == ("strict", True)
    hole = hook_policy("hole", directory)
    assert (hole.systemd, allows(hole.program, 195, 0), allows(hole.program, 195, 1)) == (None, True, False)
    share = hook_policy("share", directory)
    assert (share.program, share.gpu_max) == (None, "max 100000")


def test_the_table_of_gpus(tmp_path: Path) -> None:
    directory = str(tmp_path / "hook")
    refresh(fake_host(), str(tmp_path / "none"), directory)
    table = gpu_table(directory)
    assert set(table.names) == {
        *("0", "1", "nvidia:0", "nvidia:1", "0000:00:00.0", "0000:01:00.0"),
        *(uuid(0), uuid(1)),
    }
    assert sorted(os.listdir(f"{directory}/programs")) == sorted([uuid(0), uuid(1), "none", f"{uuid(0)}+{uuid(1)}"])
    only = table.program(table.select("1"), directory)
    assert [allows(only, 195, minor) for minor in (0, 1, 2, 255)] == [False, True, False, True]
    assert allows(only, 10, 200)
    nothing = table.program(table.select("none"), directory)
    assert [allows(nothing, 195, minor) for minor in (0, 1, 255)] == [False] * 3
    assert not allows(nothing, 195, 0, 1)


def test_a_refresh_forgets_what_is_gone(tmp_path: Path, policies: str) -> None:
    directory = str(tmp_path / "hook")
    refresh(fake_host(), policies, directory)
    os.unlink(f"{policies}/one.yaml")
    Path(directory, "programs", "stale").write_bytes(b"")
    assert refresh(fake_host(1), policies, directory).policies == ("hole", "share")
    assert known(directory).policies == ("hole", "share")
    assert sorted(os.listdir(f"{directory}/programs")) == sorted([uuid(0), "none"])


def test_one_bad_policy_stops_no_other(tmp_path: Path, policies: str) -> None:
    """A name that no engine resolves makes engines refuse all of gpuiso-policy.yaml; a FIFO would be waited for."""
    os.link(f"{policies}/one.yaml", f"{policies}/we ird.yaml")
    os.symlink("/dev/zero", f"{policies}/endless.yaml")
    os.mkfifo(f"{policies}/fifo.yaml")
    Path(policies, "long.yaml").write_bytes(b"#" * (2 << 20))
    done = refresh(fake_host(), policies, str(tmp_path / "hook"))
    assert done.policies == ("hole", "one", "share")
    said = {error.message.partition(": ")[0].rpartition("/")[2]: error.message for error in done.errors}
    assert "must start and end with a letter or digit" in said["we ird.yaml"]
    assert "is no regular file" in said["endless.yaml"]
    assert "is no regular file" in said["fifo.yaml"]
    assert "is longer than" in said["long.yaml"]


def test_a_host_without_gpus_has_a_table_too(tmp_path: Path) -> None:
    directory = str(tmp_path / "hook")
    host = FakeHost(files={"/proc/devices": "Character devices:\n  1 mem\n"})
    assert refresh(host, str(tmp_path / "none"), directory).gpus == ()
    assert known(directory).gpus == ()


def test_what_is_known_says_why_it_is_not(tmp_path: Path) -> None:
    nothing = known(str(tmp_path / "none"))
    assert (nothing.gpus, nothing.policies) == (None, ())
    assert "run gpuiso hook refresh" in nothing.problems[0]
    refresh(fake_host(), str(tmp_path / "none"), str(tmp_path))
    (tmp_path / "policy-x.json").write_text("{}")
    assert "is of another version of gpuiso" in known(str(tmp_path)).problems[0]


GRANTS = """gpuiso: 1
grants:
- users: [alice]
- containers: [team=research, tier]
  gpus: [1]
  most: 1
  gpu.max: 50000
- slices: [batch.slice]
"""


def with_policies(directory: str, files: dict[str, str]) -> FakeHost:
    """A host, and this machine, with files in that directory."""
    make_fake_tree(Path(directory), files)
    host = fake_host()
    found = {f"{directory}/{name}": text.encode() for name, text in files.items()}
    host.files |= found
    host.nodes |= {path: node(path, mode=0o644) for path in found} | {directory: node(directory, "d")}
    return host


def test_grants_become_what_the_hook_reads(tmp_path: Path) -> None:
    policies, directory = str(tmp_path / "policy.d"), str(tmp_path / "hook")
    files = {"grants.yaml": GRANTS, "share.json": POLICIES["share.json"]}
    done = refresh(with_policies(policies, files), policies, directory)
    assert (done.policies, done.grants, done.errors) == (("share",), 2, ())
    compiled = json.loads(Path(directory, GRANTS_NAME).read_text())
    assert compiled["error"] is None
    assert compiled["grants"] == [
        {
            "place": f"{policies}/grants.yaml:4",
            "slices": [],
            "containers": [["team", "research"], ["tier", None]],
            "gpus": [uuid(1)],
            "most": 1,
            "gpu.max": "50000 100000",
        },
        {
            "place": f"{policies}/grants.yaml:8",
            "slices": ["batch.slice"],
            "containers": [],
            "gpus": [uuid(0), uuid(1)],
            "most": None,
            "gpu.max": None,
        },
    ]
    assert known(directory).grants == 2
    # What is wrong leaves in force what was compiled before.
    path = f"{policies}/grants.yaml"
    host = with_policies(policies, {"grants.yaml": GRANTS.replace("most", "mots")})
    done = refresh(host, policies, directory)
    assert [error.message for error in done.errors] == [f"{path}:6:3: unknown key 'mots'"]
    assert json.loads(Path(directory, GRANTS_NAME).read_text()) == compiled
    os.unlink(f"{directory}/{GRANTS_NAME}")
    refresh(host, policies, directory)
    assert known(directory).grants == 0
    assert known(directory).problems == (f"no container is granted a GPU: {path}:6:3: unknown key 'mots'",)


def test_what_keeps_grants_from_being_held_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies, directory = str(tmp_path / "policy.d"), str(tmp_path / "hook")
    host = with_policies(policies, {"grants.yaml": GRANTS})
    assert known(directory, policies).problems[1:] == (
        f"{policies} is not compiled: where the hook is called, containers that ask for a GPU do not start",
    )
    assert refresh(host, policies, directory).problems == ()
    assert known(directory, policies).problems == ()
    monkeypatch.setattr(known_module, "decided_by_v1", lambda: True)
    (problem,) = refresh(host, policies, directory).problems
    assert problem.startswith("cgroup v1 decides about devices on this host, so grants cannot be held")


@pytest.mark.parametrize("spoiled", ["grant:\n- containers: [a]", "", "{", "grants: [", "\ufeffgrant: []"])
def test_whatever_becomes_of_a_file_the_grants_stay(tmp_path: Path, spoiled: str) -> None:
    policies, directory = str(tmp_path / "policy.d"), str(tmp_path / "hook")
    refresh(with_policies(policies, {"grants.yaml": GRANTS}), policies, directory)
    before = Path(directory, GRANTS_NAME).read_text()
    done = refresh(with_policies(policies, {"grants.yaml": spoiled}), policies, directory)
    assert done.errors
    assert done.grants == 2
    assert Path(directory, GRANTS_NAME).read_text() == before


@pytest.mark.parametrize(
    ("spoiled", "grants"),
    [
        ("grant:\n- containers: [a]", 0),
        ("grants: [{containers: [", 0),
        ("grants:", 0),
        ("", 0),
        ("gpuiso: 1", 0),
        ("gpuiso: 1\ndevices: [nonsense]", None),
    ],
)
def test_after_a_boot_what_may_limit_containers_grants_nothing(
    tmp_path: Path, spoiled: str, grants: int | None
) -> None:
    policies, directory = str(tmp_path / "policy.d"), str(tmp_path / "hook")
    done = refresh(with_policies(policies, {"a.yaml": spoiled}), policies, directory)
    assert done.errors
    assert done.grants == grants


@pytest.mark.parametrize(
    "text", ["gpuiso: 1\ngrants: [{users: [a]}, {slices: [a.slice]}]", "gpuiso: 1\ndefault: allow"]
)
def test_where_grants_limit_no_container_the_hook_has_none(tmp_path: Path, text: str) -> None:
    directory = tmp_path / "hook"
    directory.mkdir()
    (directory / GRANTS_NAME).write_text("of before")
    policies = str(tmp_path / "policy.d")
    assert refresh(with_policies(policies, {"grants.yaml": text}), policies, str(directory)).grants is None
    assert not (directory / GRANTS_NAME).exists()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedAndUndone, match="cannot be written: Not a directory"):
        refresh(fake_host(), str(tmp_path), f"{tmp_path}/file/hook")


def test_the_hook_looks_where_the_tables_are() -> None:
    assert os.path.dirname(GRANTS_FILE) == DIRECTORY


def test_policies_as_cdi_devices() -> None:
    spec = policy_spec(("one", "two"))
    assert list(faults(spec)) == []
    assert [device.name for device in spec.devices] == ["one", "two"]
    hooks = spec.devices[0].container_edits.hooks
    assert [(hook.hook_name, hook.args[1:]) for hook in hooks] == [
        ("createRuntime", ("createRuntime", "--policy", "one")),
        ("poststop", ("poststop",)),
    ]
    assert all(hook.env for hook in hooks)


def test_injecting_twice_is_injecting_once() -> None:
    other = {"path": "/usr/bin/other"}
    container = {"path": "/usr/bin/gpuiso-hook", "args": ["gpuiso-hook", "createContainer", "--link", "a::/b"]}
    config = {"ociVersion": "1.0.2", "hooks": {"createRuntime": [other], "createContainer": [container]}}
    once = add_hooks(config, ["--gpus", "1"])
    twice = add_hooks(json.loads(json.dumps(once)), ["--gpus", "0"])
    runtime = twice["hooks"]["createRuntime"]
    assert (runtime[0], len(runtime), runtime[1]["args"]) == (other, 2, ["gpuiso-hook", "createRuntime", "--gpus", "0"])
    assert twice["hooks"]["createContainer"] == [container]
    assert [hook["args"] for hook in twice["hooks"]["poststop"]] == [["gpuiso-hook", "poststop"]]
    assert all(hook["env"] for hook in (runtime[1], *twice["hooks"]["poststop"]))
