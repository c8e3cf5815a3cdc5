# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Node
from gpuiso.host.recorded import RecordedHost
from gpuiso.policy.document import parse_policy
from gpuiso.policy.limits import GpuMax
from gpuiso.policy.nodes import NODE_SETS
from gpuiso.policy.parse import parse_statements
from gpuiso.policy.place import BadPolicy
from gpuiso.policy.resolve import ResolvedPolicy, read_resolved, resolve
from gpuiso.policy.rule import Rule
from gpuiso.policy.statement import Numbers, Statement
from tests.policy.test_statement import STATEMENTS
from tests.records import UUIDS, RecordMaker
from tests.support import REPOSITORY

CONTROL = {"c 195:255", "c 238:0", "c 238:1"}
MIG_UUIDS = ["MIG-aaaa1111-0000", "MIG-aaaa2222-0000", "MIG-bbbb3333-0000"]


@pytest.fixture
def maker(tmp_path: Path) -> RecordMaker:
    return RecordMaker(tmp_path / "record")


@pytest.fixture
def mig(maker: RecordMaker) -> RecordMaker:
    """GPU 0 has GPU instance 1 with two compute instances, and GPU instance 2 with one."""
    instances = [(1, 0), (1, 1), (2, 0)]
    base = "/proc/driver/nvidia/capabilities/gpu0/mig"
    maker.files |= {f"{base}/gi{gi}/access": f"DeviceFileMinor: {gi}0\n" for gi in (1, 2)}
    maker.files |= {f"{base}/gi{gi}/ci{ci}/access": f"DeviceFileMinor: {gi}{ci + 1}\n" for gi, ci in instances}
    devices = [
        {"uuid": uuid, "gpu_instance": gi, "compute_instance": ci, "profile": "1c.2g.35gb"}
        for uuid, (gi, ci) in zip(MIG_UUIDS, instances, strict=True)
    ]
    gpu = {"index": 0, "pci_bus_id": "00000000:00:00.0", "mig_mode": "Enabled", "mig_devices": devices}
    maker.tools["nvml.json"] = {"gpus": [gpu]}
    return maker


def resolved(maker: RecordMaker, text: str) -> ResolvedPolicy:
    return resolve(parse_statements(text, file="gpu.rules"), maker.host())


def devices(maker: RecordMaker, text: str) -> set[str]:
    """What the rules of one statement name."""
    return {str(rule).split(" ", 1)[1].rsplit(" ", 1)[0] for rule in resolved(maker, text).rules}


def errors(maker: RecordMaker, text: str) -> list[str]:
    with pytest.raises(BadPolicy) as caught:
        resolved(maker, text)
    return [error.message for error in caught.value.errors]


def test_numbers_and_the_default_nodes_need_no_host() -> None:
    class Nowhere(RecordedHost):
        def __init__(self) -> None:
            """Has nothing to answer with."""

    found = resolve(parse_statements("deny a\nallow c 5:* r\nallow default-nodes rw"), Nowhere())
    assert found.rules[:2] == (Rule(False, "a", None, None, "rwm"), Rule(True, "c", 5, None, "r"))
    assert [str(rule) for rule in found.rules[2:]] == [
        f"allow c {numbers} rw" for numbers in ["1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:1", "5:2", "136:*"]
    ]
    assert list(NODE_SETS) == ["default-nodes"]


def test_rules_know_their_line(maker: RecordMaker) -> None:
    rules = resolved(maker, "deny a\n\nallow gpu 1 rw # comment").rules
    assert [str(rule.place) for rule in rules] == ["gpu.rules:1: deny a", *["gpu.rules:3: allow gpu 1 rw"] * 4]


def test_paths(maker: RecordMaker) -> None:
    maker.nodes["/dev/disk"] = {"path": "/dev/disk", "type": "b", "major": 254, "minor": 1, "mode": "0660", "uid": 0}
    maker.nodes["/dev/disk"]["gid"] = 0
    maker.nodes["/dev/link"] = {"path": "/dev/link", "type": "l", "target": "nvidia1"}
    maker.files["/dev/file"] = ""
    assert devices(maker, "allow /dev/nvidia1") == {"c 195:1"}
    assert devices(maker, "allow /dev/disk") == {"b 254:1"}
    assert devices(maker, "allow /dev/link") == {"c 195:1"}
    assert devices(maker, "allow /dev/char/300:7\nallow /dev/block/8:0") == {"c 300:7", "b 8:0"}
    assert devices(maker, "allow -/dev/nvidia9") == set()
    assert errors(maker, "allow /dev/nvidia9\nallow /dev/file\nallow /dev/char/5000:1") == [
        "gpu.rules:1:7: /dev/nvidia9 does not exist",
        "gpu.rules:2:7: /dev/file is not a device node",
        "gpu.rules:3:7: /dev/char/5000:1: major 5000 is out of range: 0 to 4095, or *",
    ]


def test_globs(maker: RecordMaker) -> None:
    maker.add_node("/dev/nvidia-caps/nvidia-cap1", 241, 1)
    maker.add_node("/dev/nvidia-caps/nvidia-cap2", 241, 2)
    assert devices(maker, "allow /dev/nvidia[0-9]") == {"c 195:0", "c 195:1"}
    assert devices(maker, "allow /dev/nvidia[^0]") == {"c 195:1"}
    assert devices(maker, "allow /dev/nvidia*") == {"c 195:0", "c 195:1", *CONTROL}
    assert devices(maker, "allow /dev/*/nvidia-cap?") == {"c 241:1", "c 241:2"}
    (remark,) = resolved(maker, "allow a\nallow /dev/nvidia?x").remarks
    assert str(remark) == "gpu.rules:2:7: no device node matches /dev/nvidia?x"
    assert resolved(maker, "allow a\nallow -/dev/nvidia?x").remarks == ()


def test_classes(maker: RecordMaker) -> None:
    assert devices(maker, "allow char-nvidia") == {"c 195:*"}
    assert devices(maker, "allow char-nvidia*") == {"c 195:*", "c 238:*", "c 241:*"}
    assert devices(maker, "allow char-7\nallow char-*\nallow block-*") == {"c 7:*", "c *:*", "b *:*"}
    assert devices(maker, "allow block-virtblk") == {"b 254:*"}
    assert devices(maker, "allow -char-kfd") == set()
    assert errors(maker, "allow char-kfd\nallow char-4096") == [
        "gpu.rules:1:7: no driver 'kfd' in /proc/devices",
        "gpu.rules:2:7: char-4096: major 4096 is out of range: 0 to 4095, or *",
    ]
    (remark,) = resolved(maker, "allow a\nallow char-kf?").remarks
    assert remark.message == "no driver in /proc/devices matches kf?"


@pytest.mark.parametrize(
    "name", ["0", "nvidia:0", UUIDS[0], UUIDS[0][:9], "GPU-" + UUIDS[0][4:].upper(), "0000:00:00.0", "00000000:00:00.0"]
)
def test_a_gpu_by_any_name(maker: RecordMaker, name: str) -> None:
    assert devices(maker, f"allow gpu {name}") == {"c 195:0", *CONTROL}


def test_what_a_gpu_stands_for(maker: RecordMaker) -> None:
    base = "/sys/bus/pci/devices/0000:01:00.0/drm"
    maker.files |= {f"{base}/card1/dev": "226:1\n", f"{base}/renderD129/dev": "226:129\n"}
    assert devices(maker, "allow gpu 1") == {"c 195:1", *CONTROL}
    # The control nodes stay: the other GPU needs them.
    assert devices(maker, "deny gpu 1") == {"c 195:1", "c 226:1", "c 226:129"}
    assert devices(maker, "allow gpu all") == {"c 195:0", "c 195:1", *CONTROL}
    assert devices(maker, "deny gpu all") == {"c 195:0", "c 195:1", "c 226:1", "c 226:129", *CONTROL}


def test_the_numbers_are_those_of_the_driver(maker: RecordMaker) -> None:
    maker.add_node("/dev/nvidia-uvm", 511, 0)
    assert "c 238:0" in devices(maker, "allow gpu 0")
    assert devices(maker, "allow /dev/nvidia-uvm") == {"c 511:0"}


def test_gpus_that_are_not_there(maker: RecordMaker) -> None:
    found = errors(maker, "allow gpu 2\nallow gpu GPU-3\ndeny gpu amd:0\nallow gpu 0000:0f:00.0\nallow mig MIG-1")
    assert found == [
        "gpu.rules:1:7: there is no GPU 2 here",
        "gpu.rules:2:7: there is no GPU GPU-3 here",
        "gpu.rules:3:6: there is no GPU amd:0 here",
        "gpu.rules:4:7: there is no GPU 0000:0f:00.0 here",
        "gpu.rules:5:7: there is no MIG device MIG-1 here",
    ]
    with pytest.raises(BadPolicy) as caught:
        resolved(maker, "allow gpu 2")
    hint = caught.value.hint or ""
    assert f"nvidia:0 ({UUIDS[0]}), nvidia:1 ({UUIDS[1]})" in hint
    assert "not examined: NVML: not recorded" in hint
    assert resolved(maker, "allow a\nallow -gpu 2\nallow -mig MIG-1").rules == (Rule(True, "a", None, None, "rwm"),)


def test_a_beginning_that_two_gpus_share(maker: RecordMaker) -> None:
    maker.add_gpu(2, 2, "GPU-11112222-1111-1111-1111-111111111111")
    assert errors(maker, "allow gpu GPU-1111") == ["gpu.rules:1:7: gpu GPU-1111 names 2 GPUs"]
    assert devices(maker, "allow gpu GPU-11112") == {"c 195:2", *CONTROL}


def test_a_driver_that_is_not_loaded(maker: RecordMaker) -> None:
    maker.files["/proc/devices"] = "Character devices:\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n"
    (message,) = errors(maker, "allow gpu 0")
    assert message == (
        "gpu.rules:1:7: gpu 0 needs /dev/nvidia-uvm, whose driver is not loaded: its numbers are not known"
    )
    assert devices(maker, "allow -gpu 0") == {"c 195:0", "c 195:255"}
    said = resolved(maker, "allow a\ndeny gpu all").remarks
    assert [remark.message.split(" cannot")[0] for remark in said] == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


def test_mig_devices(mig: RecordMaker) -> None:
    whole = {"c 195:0", *CONTROL}
    assert devices(mig, "allow mig MIG-aaaa1") == {*whole, "c 241:10", "c 241:11"}
    assert devices(mig, f"allow mig {MIG_UUIDS[2]}") == {*whole, "c 241:20", "c 241:21"}
    assert devices(mig, f"allow mig MIG-{UUIDS[0]}/1/1") == {*whole, "c 241:10", "c 241:12"}
    # The GPU instance's node stays where another compute instance needs it.
    assert devices(mig, "deny mig MIG-aaaa1") == {"c 241:11"}
    assert devices(mig, "deny mig MIG-bbbb") == {"c 241:20", "c 241:21"}
    capabilities = {"c 241:10", "c 241:11", "c 241:12", "c 241:20", "c 241:21"}
    assert devices(mig, "allow gpu 0") == whole | capabilities
    assert devices(mig, "deny gpu 0") == {"c 195:0"} | capabilities
    assert errors(mig, "allow mig MIG-aaaa") == ["gpu.rules:1:7: mig MIG-aaaa names 2 MIG devices"]


def test_amd(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path / "record")
    maker.files["/proc/devices"] = (maker.files["/proc/devices"] or "").replace("  1 mem", "  1 mem\n226 drm\n234 kfd")
    maker.add_node("/dev/kfd", 234, 0)
    base = "/sys/bus/pci/devices/0000:03:00.0"
    maker.files |= {f"{base}/vendor": "0x1002\n", f"{base}/class": "0x038000\n"}
    maker.files |= {f"{base}/drm/card1/dev": "226:1\n", f"{base}/drm/renderD128/dev": "226:128\n"}
    maker.nodes[f"{base}/driver"] = {"path": f"{base}/driver", "type": "l", "target": "../amdgpu"}
    assert devices(maker, "allow gpu amd:0") == {"c 226:128", "c 234:0"}
    assert devices(maker, "deny gpu amd:0") == {"c 226:1", "c 226:128"}
    assert devices(maker, "allow gpu nvidia:0") == {"c 195:0", *CONTROL}
    assert errors(maker, "allow gpu 0") == ["gpu.rules:1:7: gpu 0 names 2 GPUs"]


def test_what_a_record_does_not_tell(maker: RecordMaker) -> None:
    class Silent(RecordedHost):
        def stat(self, path: str) -> Node | None:
            raise Unknown(path, "not recorded")

    with pytest.raises(BadPolicy, match=r"^f:1:7: cannot be known here: /dev/nvidia0: not recorded$"):
        resolve(parse_statements("allow /dev/nvidia0", file="f"), Silent(str(maker.write())))


def test_a_policy(maker: RecordMaker) -> None:
    text = json.dumps({"gpuiso": 1, "devices": ["allow c 1:3 rw"], "gpu.max": "1000 2000", "pids.max": 5})
    host = maker.host()
    assert resolve(parse_policy(text), host) == ResolvedPolicy(
        (Rule(True, "c", 1, 3, "rw"),), False, GpuMax(1000, 2000), None, {"pids.max": ("5",)}
    )
    only_limits = resolve(parse_policy("gpuiso: 1\ngpu.memory.max: max"), host)
    assert only_limits == ResolvedPolicy((), True, None, "max", restricts_devices=False)
    assert resolve(parse_policy("gpuiso: 1\ndevices: []"), host) == ResolvedPolicy((), False)
    assert resolve(parse_policy("gpuiso: 1\ndefault: allow"), host) == ResolvedPolicy((), True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deny gpu 1", "every rule denies, and so does the default: nothing is allowed at all"),
        ("deny a\nallow gpu 1", "/dev/null is denied, which few programs bear"),
        ("allow a\ndeny gpu 1", None),
        ("deny a", "every rule denies, and so does the default: nothing is allowed at all"),
        ("allow default-nodes\nallow gpu 1", None),
    ],
)
def test_what_is_probably_not_meant(maker: RecordMaker, text: str, message: str | None) -> None:
    assert [remark.message for remark in resolved(maker, text).remarks] == ([] if message is None else [message])


@given(st.lists(STATEMENTS, max_size=4))
def test_any_statements_give_rules_or_errors(statements: list[Statement]) -> None:
    host = RecordedHost(str(REPOSITORY / "examples/hosts/h200-x4"))
    found, errors = read_resolved(statements, host)
    assert len(errors) <= len(statements)
    for statement in statements:
        if isinstance(statement.subject, Numbers):
            fields = statement.subject
            rule = Rule(statement.allow, fields.type, fields.major, fields.minor, statement.access)
            assert rule in found.rules
