# SPDX-License-Identifier: Apache-2.0
"""createRuntime on a real cgroup: what a process in it may open, and what a failure leaves."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import pack
from gpuiso.govern.registry import registered, unregister
from gpuiso.hook import cgroup, governed, runtime, tables, unit
from gpuiso.hook.arguments import runtime_work
from gpuiso.hook.errors import HookError
from gpuiso.hook.state import State
from gpuiso.hook.undo import Undo
from gpuiso.kernel import bpf, bpf_attach
from gpuiso.kernel.clone3 import clone3
from gpuiso.policy.rule import Rule
from tests.hook.parts import state_document
from tests.tiers import requires

pytestmark = requires("kernel")

NULL, ZERO, FULL = "/dev/null", "/dev/zero", "/dev/full"  # stand for GPUs: drivers that every machine has
TABLE = {
    "gpuiso": "hook-gpus/1",
    "deny": [[1, 5], [1, 7]],
    "drivers": {"mem": 1},
    "gpus": {"zero": [[1, 5]], "full": [[1, 7]]},
    "own": {"zero": [[1, 5]], "full": [[1, 7]]},
    "names": {"0": "zero", "1": "full", "GPU-zero": "zero"},
}
ONLY_NULL = pack(compile_rules([Rule(True, "c", 1, 3, "rwm")])).hex()
NO_FULL = pack(compile_rules([Rule(False, "c", 1, 7, "rwm")], default_allow=True))


EMPTY: Mapping[str, str] = MappingProxyType({})


class Container:
    """A process in a cgroup of its own, and the directories the hook reads and writes."""

    def __init__(self, directory: Path, path: str, pid: int, base: Path) -> None:
        self.directory = directory
        self.path = path
        self.pid = pid
        self.base = base
        self.tables = base / "hook"
        self.registry = base / "govern"

    def start(self, *arguments: str, labels: Mapping[str, str] = EMPTY, **annotations: str) -> None:
        named = {f"gpuiso.{name.replace('_', '.')}": value for name, value in annotations.items()} | dict(labels)
        undo = Undo()
        try:
            runtime.apply_policy(
                State(state_document(self.base, pid=self.pid, annotations=named)), runtime_work(list(arguments)), undo
            )
        except (HookError, OSError):
            assert undo.take_back() == []
            raise
        undo.finish()

    def programs(self) -> tuple[int, ...]:
        fd = os.open(self.directory, os.O_RDONLY)
        try:
            return bpf.prog_query(fd).ids
        finally:
            os.close(fd)

    def opens(self, *nodes: str) -> list[str]:
        """What a process in the cgroup gets: 0 or the errno's name."""
        return [self._open(node) for node in nodes]

    def _open(self, node: str) -> str:
        fd = os.open(self.directory, os.O_RDONLY)
        pid, pidfd = clone3(cgroup_fd=fd)
        if pid == 0:
            try:
                os.close(os.open(node, os.O_RDWR))
                os._exit(0)
            except OSError as error:
                os._exit(error.errno or 255)
        os.close(fd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return errno.errorcode.get(code, str(code))

    def attach(self, program: bytes) -> None:
        """As a runtime does."""
        fd = os.open(self.directory, os.O_RDONLY)
        loaded = bpf.prog_load(program, name="of_the_runtime")
        bpf.prog_attach(fd, loaded)
        os.close(loaded)
        os.close(fd)


@pytest.fixture
def container(
    tmp_cgroup: Path, cgroup2_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Container]:
    (tmp_path / "hook").mkdir(mode=0o755)
    (tmp_path / "hook/gpus.json").write_text(json.dumps(TABLE))
    (tmp_path / "config.json").write_text("{}")
    policy = {"gpuiso": "hook-policy/1", "program": ONLY_NULL, "systemd": None, "gpu.max": "50000 100000"}
    (tmp_path / "hook/policy-null.json").write_text(json.dumps(policy))
    share = policy | {"program": None, "gpu.max": "20000 100000"}
    (tmp_path / "hook/policy-share.json").write_text(json.dumps(share))
    # On a hybrid machine runtimes use v1; here the cgroup is one of v2 all the same.
    monkeypatch.setattr(cgroup, "_mount_point", lambda: str(cgroup2_root))
    monkeypatch.setattr(cgroup, "decided_by_v1", lambda: False)
    monkeypatch.setattr(runtime, "TABLE_FILE", str(tmp_path / "hook/gpus.json"))
    monkeypatch.setattr(runtime, "SOURCES", str(tmp_path / "policy.d"))
    monkeypatch.setattr(tables, "DIRECTORY", str(tmp_path / "hook"))
    monkeypatch.setattr(runtime, "GRANTS_FILE", str(tmp_path / "hook/grants.json"))
    for name in ("gpu_table", "hook_policy"):
        function = getattr(tables, name)
        defaults = (str(tmp_path / "hook"),)
        monkeypatch.setattr(function, "__defaults__", defaults)
    monkeypatch.setattr(tables.GpuTable.program, "__defaults__", (str(tmp_path / "hook"),))
    monkeypatch.setattr(governed.register, "__defaults__", (str(tmp_path / "govern"),))
    monkeypatch.setattr(governed.forget, "__defaults__", (str(tmp_path / "govern"),))
    process = subprocess.Popen(["sleep", "60"])
    (tmp_cgroup / "cgroup.procs").write_text(str(process.pid))
    path = f"/{tmp_cgroup.relative_to(cgroup2_root)}"
    yield Container(tmp_cgroup, path, process.pid, tmp_path)
    process.kill()
    process.wait()


def test_without_a_policy_nothing_is_done_or_even_looked_up(container: Container) -> None:
    container.pid = 0
    container.start()
    assert container.programs() == ()


def test_gpus_by_annotation_take_the_others_away(container: Container) -> None:
    container.attach(NO_FULL)
    container.start(gpus="0")
    assert container.opens(NULL, ZERO, FULL) == ["0", "0", "EPERM"]
    assert len(container.programs()) == 2


def test_an_annotation_cannot_give_what_the_runtime_does_not(container: Container) -> None:
    container.attach(NO_FULL)
    container.start(gpus="1")
    assert container.opens(NULL, ZERO, FULL) == ["0", "EPERM", "EPERM"]
    container.start(policy="null")
    assert container.opens(NULL, ZERO, FULL) == ["0", "EPERM", "EPERM"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ["0", "0"]),
        ("none", ["EPERM", "EPERM"]),
        ("GPU-zero", ["0", "EPERM"]),
        ("1, 0", ["0", "0"]),
        ("1,1", ["EPERM", "0"]),
    ],
)
def test_how_gpus_are_named(container: Container, text: str, expected: list[str]) -> None:
    container.start("--gpus", text)
    assert container.opens(ZERO, FULL) == expected


def test_a_policy_of_the_command_line_replaces_the_runtimes_rules(container: Container) -> None:
    container.attach(NO_FULL)
    container.attach(pack(compile_rules([])))
    assert container.opens(NULL) == ["EPERM"]
    container.start("--policy", "null")
    assert container.opens(NULL, ZERO, FULL) == ["0", "EPERM", "EPERM"]
    assert len(container.programs()) == 1


def test_programs_are_compiled_once(container: Container) -> None:
    (container.tables / "programs").mkdir()
    container.start(gpus="0,1")
    kept = container.tables / "programs/full+zero"
    first = kept.read_bytes()
    kept.write_bytes(bytes.fromhex(ONLY_NULL))
    container.start(gpus="1,0")
    assert container.opens(ZERO) == ["EPERM"]
    assert first != kept.read_bytes()


def test_gpu_max_is_handed_to_the_governor_until_poststop(container: Container) -> None:
    container.start("--gpu-max", "70000 100000", policy="share", gpu_max="30000")
    (known,) = registered(str(container.registry)).items()
    assert (known[0], str(known[1])) == (container.path, "20000 100000")
    assert container.programs() == ()
    governed.forget("c1")
    assert registered(str(container.registry)) == {}
    governed.forget("c1")


def test_the_governor_knows_the_entry_as_its_own(container: Container) -> None:
    container.start("--gpu-max", "70000")
    assert unregister(container.path, str(container.registry))
    assert list(container.registry.iterdir()) == []


def test_ids_cannot_leave_the_registry(container: Container) -> None:
    undo = Undo()
    strange = '../../etc/x", "gpu.max": "max'
    governed.register(strange, "/c", "1000 2000", undo, str(container.registry))
    governed.forget("../../etc/x", str(container.registry))
    assert len(list(container.registry.iterdir())) == 1
    assert [str(share) for share in registered(str(container.registry)).values()] == ["1000 2000"]
    assert undo.take_back() == []
    assert list(container.registry.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "annotations", "says"),
    [
        ([], {"gpus": "7"}, "gpuiso.gpus: there is no GPU '7' here; known are 0, 1, GPU-zero, all, none"),
        ([], {"gpus": ""}, "there is no GPU ''"),
        ([], {"policy": "none"}, "there is no compiled policy 'none'"),
        ([], {"policy": "../x"}, "'../x' is no name of a policy"),
        ([], {"policy": ".x"}, "'.x' is no name of a policy"),
        ([], {"gpu_max": "5"}, "gpu.max '5': the quota: 5 is out of range"),
        ([], {"gpu": "0"}, "unknown annotation gpuiso.gpu; gpuiso knows gpuiso.policy, gpuiso.gpus, gpuiso.gpu.max"),
        (["--policy", "x"], {}, "there is no compiled policy 'x'"),
    ],
)
def test_what_cannot_be_held_is_refused_before_anything_is_done(
    container: Container, arguments: list[str], annotations: dict[str, str], says: str
) -> None:
    with pytest.raises(HookError) as caught:
        container.start(*arguments, labels={}, **annotations)
    assert says in str(caught.value)
    assert container.programs() == ()


def test_tables_of_others_are_not_obeyed(container: Container) -> None:
    container.tables.chmod(0o777)
    with pytest.raises(HookError, match="can be written by others than root"):
        container.start(gpus="0")
    container.tables.chmod(0o755)
    (container.tables / "gpus.json").write_text(json.dumps(TABLE | {"drivers": {"mem": 77}}))
    with pytest.raises(HookError, match="is out of date: mem is 1 now, not 77; run gpuiso hook refresh"):
        container.start(gpus="0")
    (container.tables / "gpus.json").write_text(json.dumps(TABLE | {"gpus": 5}))
    with pytest.raises(HookError, match=r"gpus.json is damaged"):
        container.start(gpus="0")
    (container.tables / "gpus.json").write_text(json.dumps(TABLE | {"gpuiso": "hook-gpus/2"}))
    with pytest.raises(HookError, match="is of another version of gpuiso"):
        container.start(gpus="0")


def test_a_cgroup_that_others_share_is_left_alone(container: Container) -> None:
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(subprocess.Popen(["sleep", "60"]))
        stack.callback(other.kill)
        (container.directory / "cgroup.procs").write_text(str(other.pid))
        with pytest.raises(HookError, match=r"shares the cgroup .* with other processes"):
            container.start(gpus="0")
    assert container.programs() == ()


@pytest.mark.parametrize("step", ["load", "first", "second", "register"])
def test_a_failure_at_any_step_leaves_the_cgroup_as_before(
    container: Container, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container.attach(NO_FULL)
    before = container.programs()
    calls = 0

    def fail(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    attach = bpf.prog_attach

    def fail_later(*arguments: int, **named: int) -> None:
        nonlocal calls
        calls += 1
        if calls == {"first": 1, "second": 2}[step]:
            fail()
        attach(*arguments, **named)

    if step == "load":
        monkeypatch.setattr(bpf_attach, "prog_load", fail)
    elif step == "register":
        monkeypatch.setattr(os, "makedirs", fail)
    else:
        monkeypatch.setattr(bpf_attach, "prog_attach", fail_later)
    with pytest.raises((HookError, OSError), match="Cannot allocate memory"):
        container.start("--policy", "null", gpus="0")
    monkeypatch.undo()
    assert container.programs() == before
    assert not container.registry.exists()


def test_a_unit_is_found_in_the_path_of_a_cgroup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unit, "_SYSTEMD", str(tmp_path))
    assert unit.unit_of("/system.slice/docker-a.scope") == "docker-a.scope"
    assert unit.unit_of("/machine.slice/libpod-a.scope/container") == "libpod-a.scope"
    assert unit.unit_of("/user.slice/user-1.slice/user@1.service/app.slice/a.scope") is None
    assert unit.unit_of("/docker/a") is None
    monkeypatch.setattr(unit, "_SYSTEMD", str(tmp_path / "none"))
    assert unit.unit_of("/system.slice/docker-a.scope") is None
