# SPDX-License-Identifier: Apache-2.0
"""Who may have which GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuiso.errors import BadInput, NotPermitted, UsageError
from gpuiso.grants.bearer import Bearer
from gpuiso.grants.decide import applying, permitted
from gpuiso.grants.document import DIRECTORY, is_grants, load_grants, read_grants
from gpuiso.grants.spec import matching, parse_request
from gpuiso.host.protocol import Node
from gpuiso.policy.limits import GpuMax
from tests.cdi.fake_host import FakeHost
from tests.cdi.fake_host import node as fake_node
from tests.launch.parts import gpus
from tests.records import RecordMaker
from tests.support import REPOSITORY

UNITS = gpus(4)
TEXT = """
gpuiso: 1
grants:
  - groups: [research]
    gpus: [0, 1]
    most: 2
    gpu.max: 50000 100000
    share: false
  - users: [bob, "1003"]
  - slices: [batch.slice]
    gpus: [3]
  - containers: [team=research, tier]
    gpus: [2]
"""


def node(kind: str, **more: Any) -> Node:
    return fake_node(f"{DIRECTORY}/a.yaml", kind, **{"mode": 0o644, **more})


def account(name: str, *groups: str, uid: int = 1000, cgroup: str = "/") -> Bearer:
    return Bearer(uid, name, frozenset(groups), cgroup)


def ask(text: str, who: Bearer, *, share: bool = False, gpu_max: GpuMax | None = None, file: str = TEXT) -> Any:
    request = parse_request(text, UNITS)
    return permitted(read_grants(file, file="p.yaml"), who, request, UNITS, share=share, gpu_max=gpu_max)


def test_a_grant_narrows_the_request_and_sets_limits() -> None:
    terms = ask("1", account("alice", "research"))
    assert terms.request.slots == (("GPU-0", "GPU-1"),)
    assert terms.most == 2
    assert terms.gpu_max == GpuMax(50000)
    assert ask("1", account("alice", "research"), gpu_max=GpuMax(20000)).gpu_max == GpuMax(20000)


def test_a_grant_without_limits() -> None:
    for who in (account("bob"), account("carol", uid=1003)):
        terms = ask("4", who, share=True)
        assert terms.request.slots == (tuple(unit.id for unit in UNITS),) * 4
        assert (terms.most, terms.gpu_max) == (None, None)


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("2,3", {}, "p.yaml:4: only the GPUs 0, 1"),
        ("3", {}, "at most 2 GPUs"),
        ("1", {"share": True}, "not with --share"),
        ("1", {"gpu_max": GpuMax(80000)}, "gpu.max at most 50000 100000"),
        ("1", {"gpu_max": GpuMax(None)}, "gpu.max at most 50000 100000"),
    ],
)
def test_what_a_grant_does_not_give(text: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(NotPermitted, match=why):
        ask(text, account("alice", "research"), **options)


def test_nobody_else_has_anything_but_root() -> None:
    with pytest.raises(NotPermitted, match="is for this user"):
        ask("1", account("mallory"))
    assert ask("4", account("root", uid=0)).most is None
    everybody = "gpuiso: 1\ngrants: [{users: ['*'], most: 1}]\n"
    assert ask("1", account("mallory"), file=everybody).most == 1
    assert ask("4", account("root", uid=0), file=everybody).most is None


def test_a_second_grant_helps_where_the_first_does_not() -> None:
    assert ask("4", account("bob", "research")).most is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpuiso: 2\ngrants: []", "p.yaml:1:1: the first line is to be gpuiso: 1"),
        ("gpuiso: 1", "p.yaml:1:1: the key grants is missing"),
        ("gpuiso: 1\ngrants: {}", "p.yaml:2:9: grants is a list, not a mapping"),
        ("gpuiso: 1\ngrants: [{most: 1}]", "p.yaml:2:10: a grant is for users, groups, slices, containers"),
        ("gpuiso: 1\ngrants:\n- users: [a]\n  most: two", "p.yaml:4:9: expected a whole number, not 'two'"),
        ("gpuiso: 1\ngrants:\n- users: [a]\n  mots: 2", "p.yaml:4:3: unknown key 'mots'"),
        ("gpuiso: 1\ngrants:\n- users: [a]\n  gpus: [first]", "p.yaml:4:9: 'first' names no GPU"),
        ("gpuiso: 1\ngrants:\n- users: [a]\n  share: on", "p.yaml:4:10: expected true or false, not 'on'"),
        ("gpuiso: 1\ngrants:\n- slices: [a, b]", "p.yaml:3:12: 'a' is no slice"),
        ("gpuiso: 1\ngrants:\n- containers: [a, =b]", "p.yaml:3:19: '=b' has no key"),
        ("gpuiso: 1\ngrants:\n- containers: ['*=b']", "p.yaml:3:17: '*=b' has no key"),
        ("grants: []", "p.yaml:1:1: the first line is to be gpuiso: 1"),
        ("gpuiso: 1\ngrants:\n- users: a", "p.yaml:3:10: users is a list, not a text"),
        ("- a", "p.yaml:1:1: a file of grants is a mapping of keys to values, not a list"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_grants(text, file="p.yaml")
    assert raised.value.message == message


def test_whoever_is_in_a_slice() -> None:
    inside = "/batch.slice/batch-7.slice/job.scope"
    assert ask("1", account("carol", cgroup=inside)).request.slots == (("GPU-3",),)
    assert ask("1", account("root", uid=0, cgroup=inside)).request.slots == (("GPU-3",),)
    users_own = "/user.slice/user-1000.slice/user@1000.service/batch.slice/x"
    for outside in ("/batch.slice.d/x", "/", "/big-batch.slice/x", "/system.slice/batch.slice/x", users_own):
        with pytest.raises(NotPermitted):
            ask("1", account("carol", cgroup=outside))


@pytest.mark.parametrize(
    ("annotations", "lines"),
    [
        ({"team": "research"}, [12]),
        ({"team": "other"}, []),
        ({"tier": "whatever"}, [12]),
        ({}, []),
    ],
)
def test_a_container_is_told_by_its_annotations(annotations: dict[str, str], lines: list[int]) -> None:
    grants = read_grants(TEXT, file="p.yaml")
    # Neither the user inside nor root outside says whose a container is.
    found = applying(grants, Bearer(0, "bob", frozenset({"research"}), "/", annotations))
    assert [grant.place.line for grant in found or ()] == lines
    assert len(applying(grants, Bearer(0, "", frozenset(), "/batch.slice/docker-1.scope", annotations)) or ()) == (
        len(lines) + 1
    )


def test_containers_are_limited_once_a_grant_speaks_of_them() -> None:
    container = Bearer(0, "", annotations={"a": "b"})
    assert applying(None, container) is None
    assert applying(read_grants("gpuiso: 1\ngrants: [{users: ['*']}, {slices: [a.slice]}]"), container) is None
    assert applying(read_grants("gpuiso: 1\ngrants: [{containers: [c]}]"), container) == ()
    (every,) = applying(read_grants("gpuiso: 1\ngrants: [{containers: ['*']}]"), container) or ()
    assert every.gpus is None


def test_users_are_not_limited_by_what_speaks_of_containers_alone() -> None:
    alice = account("alice")
    assert applying(read_grants("gpuiso: 1\ngrants: [{containers: ['*']}]"), alice) is None
    assert applying(read_grants("gpuiso: 1\ngrants: [{containers: ['*']}, {slices: [a.slice]}]"), alice) == ()
    assert applying([], alice) == ()


def test_files_of_a_host(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files[f"{DIRECTORY}/10-all.yaml"] = TEXT
    maker.files[f"{DIRECTORY}/README"] = "not one of them"
    maker.files[f"{DIRECTORY}/20-half.yaml"] = "gpuiso: 1\ngpu.max: 50000\n"
    maker.files[f"{DIRECTORY}/30.rules"] = "allow gpu 0\n"
    grants = load_grants(maker.host())
    assert grants is not None
    assert [sorted(grant.users | grant.groups) for grant in grants] == [["research"], ["1003", "bob"], [], []]


def test_policies_alone_limit_nobody(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files[f"{DIRECTORY}/20-half.yaml"] = "gpuiso: 1\ngpu.max: 50000\n"
    assert load_grants(maker.host()) is None


def test_a_misspelt_file_is_not_taken_for_one_without_grants(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    maker.files[f"{DIRECTORY}/10-all.yaml"] = TEXT.replace("grants:", "grant:")
    with pytest.raises(BadInput, match=r"10-all\.yaml:3:1: unknown key 'grant'"):
        load_grants(maker.host())


def test_a_file_that_others_can_write_gives_nothing(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    path = f"{DIRECTORY}/10-all.yaml"
    maker.files[path] = TEXT
    maker.nodes[path] = {"path": path, "type": "f", "mode": "0664", "uid": 0, "gid": 0}
    with pytest.raises(BadInput, match="others than root can write it"):
        load_grants(maker.host())


def put(maker: RecordMaker, path: str, text: str = TEXT, **more: Any) -> None:
    maker.files[path] = text
    maker.nodes[path] = {"path": path, "type": "f", "mode": "0644", "uid": 0, "gid": 0} | more


@pytest.mark.parametrize(
    "text",
    [
        '{\n "gpuiso": 1,\n "grants": [{"users": ["alice"]}]\n}\n',
        "\ufeffgrants: [{users: [alice]}]\ngpuiso: 1\n",
        "gpuiso: 1\n'grants': [{users: [alice]}]\n",
        "gpuiso: 1\ngrants : [{users: [alice]}]\n",
        "{gpuiso: 1, grants: [{users: [alice]}]}",
    ],
)
def test_however_it_is_written(tmp_path: Path, text: str) -> None:
    assert is_grants(text)
    maker = RecordMaker(tmp_path)
    put(maker, f"{DIRECTORY}/a.json" if text[0] == "{" else f"{DIRECTORY}/a.yaml", text)
    (grant,) = load_grants(maker.host()) or ()
    assert grant.users == {"alice"}


def test_a_policy_that_mentions_grants_is_none() -> None:
    assert not is_grants("gpuiso: 1\n# grants: are elsewhere\ndevices: [allow gpu 0]\n")
    assert not is_grants("allow gpu 0\n")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("50-grants", r"has grants, and its name ends with none of \.yaml, \.yml, \.json"),
        ("a.YAML", r"has grants, and its name ends with none of \.yaml, \.yml, \.json"),
        ("a.rules", r"has grants, and its name ends with none of \.yaml, \.yml, \.json"),
        ("a.yaml~", None),
        ("a.yaml.rpmsave", None),
        (".a.yaml.swp", None),
    ],
)
def test_grants_under_another_name_are_not_overlooked(tmp_path: Path, name: str, why: str | None) -> None:
    maker = RecordMaker(tmp_path)
    put(maker, f"{DIRECTORY}/{name}")
    if why is None:
        assert load_grants(maker.host()) is None
    else:
        with pytest.raises(BadInput, match=why):
            load_grants(maker.host())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (node("p"), "is no regular file: whether it has grants cannot be known"),
        (node("d"), "is no regular file: whether it has grants cannot be known"),
        (node("l", target="/none"), "leads nowhere: whether it has grants cannot be known"),
        (node("f", size=2 << 20), "is longer than 1 MiB: whether it has grants cannot be known"),
        (node("f"), "is empty: it says neither who may have which GPUs nor what a policy is"),
    ],
)
def test_what_cannot_be_read_is_not_taken_for_nothing(given: Node, why: str) -> None:
    path = given.path
    host = FakeHost([given, fake_node(DIRECTORY, "d")], {path: ""} if given.type == "f" else {})
    host.nodes[path] = given
    with pytest.raises(BadInput, match=rf"^{path}: {why}"):
        load_grants(host)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (fake_node(DIRECTORY, "d", mode=0o777), "others than root can write it"),
        (fake_node(DIRECTORY, "d", mode=0o755, uid=1000), "others than root can write it"),
        (fake_node(DIRECTORY, "f"), "is no directory"),
    ],
)
def test_a_directory_of_others_is_not_obeyed(given: Node, why: str) -> None:
    with pytest.raises(BadInput, match=rf"^{DIRECTORY}: {why}"):
        load_grants(FakeHost([given]))


@pytest.mark.parametrize("path", [DIRECTORY, "/etc/gpuiso"])
def test_a_directory_that_leads_nowhere_is_not_none(path: str) -> None:
    with pytest.raises(BadInput, match=f"^{path}: leads nowhere"):
        load_grants(FakeHost([fake_node(path, "l", target="/none")]))
    assert load_grants(FakeHost([fake_node("/etc", "d")])) is None


def test_a_file_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker, f"{DIRECTORY}/a.yaml", "gpuiso: 1\n")
    with pytest.raises(BadInput, match="says nothing"):
        load_grants(maker.host())


def test_a_policy_that_is_wrong_in_itself_stops_no_launch(tmp_path: Path) -> None:
    maker = RecordMaker(tmp_path)
    put(maker, f"{DIRECTORY}/a.yaml", "gpuiso: 1\ndevices: [nonsense]\n")
    assert load_grants(maker.host()) is None


@pytest.mark.parametrize(
    ("item", "indices"),
    [
        ("0000:01:00.0", [1]),
        ("01:00.0", [1]),
        ("00000000:01:00.0", [1]),
        ("81:00.0", [3]),
        ("a1e7:01:00.0", [2]),
        ("91e7:01:00.0", []),
        ("00", [0]),
        ("9" * 5000, []),
        (f"nvidia:{'9' * 5000}", []),
    ],
)
def test_an_item_names_what_it_says_and_nothing_else(item: str, indices: list[int]) -> None:
    addresses = ("0000:00:00.0", "0000:01:00.0", "a1e7:01:00.0", "0000:81:00.0")
    units = [replace(unit, pci_address=address) for unit, address in zip(gpus(4), addresses, strict=True)]
    assert [unit.index for unit in matching(item, units)] == indices


@pytest.mark.parametrize("item", ["1:00.0", ":00.0", ":.", "0000:01:00.8", "x"])
def test_what_is_no_address_names_nothing(item: str) -> None:
    with pytest.raises(UsageError, match="names no GPU"):
        matching(item, gpus(2))


def test_a_grant_with_room_comes_before_one_that_is_full() -> None:
    text = "gpuiso: 1\ngrants: [{users: [a], most: 1}, {users: [a], gpus: [3], most: 2}]"
    grants = read_grants(text)

    def most(held: int) -> int | None:
        request = parse_request("3,", UNITS)
        return permitted(grants, account("a"), request, UNITS, share=False, gpu_max=None, held=held).most

    assert [most(held) for held in range(3)] == [1, 2, 2]


@pytest.mark.parametrize(("taken", "slots"), [((), "GPU-0"), (("GPU-0",), "GPU-3"), (("GPU-0", "GPU-3"), "GPU-0")])
def test_a_grant_that_can_be_used_now_comes_first(taken: tuple[str, ...], slots: str) -> None:
    grants = read_grants("gpuiso: 1\ngrants: [{users: [a], gpus: [0]}, {users: [a], gpus: [3]}]")
    request = parse_request("1", UNITS)
    terms = permitted(grants, account("a"), request, UNITS, share=False, gpu_max=None, taken=taken)
    assert terms.request.slots == ((slots,),)


def test_the_schema_agrees() -> None:
    import yaml
    from jsonschema import Draft202012Validator

    schema = json.loads((REPOSITORY / "gpuiso/grants/schema/grants.json").read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    validator.validate(yaml.safe_load(TEXT))
    example = REPOSITORY / "examples/run/grants.yaml"
    validator.validate(yaml.safe_load(example.read_text()))
    assert read_grants(example.read_text())
    for wrong in (
        {"users": ["a"], "mots": 2},
        {"most": 1},
        {"users": "a"},
        {"users": ["a"], "most": -1},
        {"slices": ["a"]},
    ):
        assert not validator.is_valid({"gpuiso": 1, "grants": [wrong]})
