# SPDX-License-Identifier: Apache-2.0
"""Texts and objects that nothing honest writes: refused in a sentence, when the record is opened or asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpuiso.errors import BadInput, NotFound, NotSupported, Unknown
from gpuiso.gpu.inventory import build_inventory
from gpuiso.gpu.majors import majors_by_name, registered
from gpuiso.host import open_host, process
from gpuiso.host.decimals import decimal
from gpuiso.host.docker_engine import DockerEngine
from gpuiso.host.record_json import Place
from gpuiso.host.shapes import check_container, check_info, check_unit
from tests.host.records import host, record


@pytest.mark.parametrize(
    "content",
    [
        {"State": 5},
        {"HostConfig": 5},
        {"HostConfig": {"DeviceRequests": [5]}},
        {"HostConfig": {"DeviceRequests": [{"Capabilities": ["gpu"]}]}},
        {"HostConfig": {"DeviceRequests": [{"Count": True}]}},
        {"HostConfig": {"Runtime": []}},
        {"Config": {"Env": [1]}},
        {"Mounts": {"a": 1}},
    ],
)
def test_no_container_of_docker(content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="must be"):
        check_container(content, Place("docker.json"))
    with pytest.raises(BadInput, match=r"tools/docker\.json: containers\.c0ffee"):
        open_host(str(record(tmp_path, {"tools/docker.json": {"info": None, "containers": {"c0ffee": content}}})))


def test_shapes_that_fit() -> None:
    container = {"HostConfig": {"DeviceRequests": None, "Devices": []}, "Config": {"Env": ["A=1"]}, "Other": 5}
    assert check_container(container, Place("x")) == container
    assert check_info({"Runtimes": {"runc": {}}, "DefaultRuntime": None}, Place("x"))["Runtimes"] == {"runc": {}}
    assert check_unit({"DeviceAllow": [["/dev/null", "rw"]], "MainPID": 3}, Place("x"))["MainPID"] == 3


@pytest.mark.parametrize(
    "content", [{"DeviceAllow": 5}, {"DeviceAllow": [["a"]]}, {"DeviceAllow": ["rw"]}, {"MainPID": "3"}, {"Id": []}]
)
def test_no_unit_of_systemd(content: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must be"):
        check_unit(content, Place("systemd.json"))


def test_a_daemon_that_answers_nonsense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = DockerEngine(lambda _: None, address=f"unix://{tmp_path}/docker.sock")

    class Client:
        def info(self) -> Any:
            return {"Runtimes": [1]}

    monkeypatch.setattr(DockerEngine, "_runs", True)
    monkeypatch.setattr(engine, "_client", Client())
    with pytest.raises(Unknown, match=r"not the form that Docker documents: .*info\.Runtimes: must be an object"):
        engine.info()


@pytest.mark.parametrize(
    "file", ["cgroups.json", "probes.json", "tools/nvml.json", "tools/systemd.json", "tools/docker.json"]
)
@pytest.mark.parametrize("text", ["5", "{", "[1]", '{"a": [1]}'])
def test_a_broken_file_is_refused_when_the_record_is_opened(file: str, text: str, tmp_path: Path) -> None:
    if (file, text) == ("tools/docker.json", '{"a": [1]}') or (file, text) == ("tools/nvml.json", '{"a": [1]}'):
        text = '{"gpus": 5, "info": 5}'
    with pytest.raises(BadInput, match=file):
        open_host(str(record(tmp_path, {file: text})))


@pytest.mark.parametrize("text", ["5", "{}", "[1]", '[{"argv": "x"}]'])
def test_broken_commands(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"tools/commands\.json"):
        open_host(str(record(tmp_path, {"tools/commands.json": text})))


@pytest.mark.parametrize("kind", ["link", "fifo", "socket"])
def test_an_entry_that_no_record_holds_is_refused_when_it_is_opened(kind: str, tmp_path: Path) -> None:
    place = record(tmp_path, {"root/etc/deep/er/file": "x"}) / "root/etc/deep/er/odd"
    if kind == "link":
        place.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(place))
    with pytest.raises(BadInput, match="root/etc/deep/er/odd"):
        open_host(str(tmp_path))


@pytest.mark.parametrize("top", ["root", "tools"])
def test_a_file_where_a_directory_must_be(top: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{top}: must be a directory"):
        open_host(str(record(tmp_path, {top: "x"})))


def test_cgroup_lines_without_colons(tmp_path: Path) -> None:
    found = host(tmp_path, {"root/proc/7/cgroup": "0::/a\njunk\n"})
    with pytest.raises(Unknown, match="/proc/7/cgroup"):
        process.cgroups(found, 7)


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "٣", "", "1e3"])
def test_no_number(text: str, tmp_path: Path) -> None:
    assert decimal(text) is None
    path = "root/proc/driver/nvidia/gpus/0000:01:00.0/information"
    found = host(tmp_path, {path: f"Device Minor: {text}\n", "root/proc/devices": "Character devices:\n195 nvidia\n"})
    assert [gpu.minor for gpu in build_inventory(found).gpus] == [None]


def test_a_major_that_stands_a_hundred_thousand_times(tmp_path: Path) -> None:
    text = "Character devices:\n" + "195 nvidia\n" * 100_000 + "".join(f"196 n{each}\n" for each in range(100_000))
    assert majors_by_name(text)["nvidia"] == 195
    assert len(registered(host(tmp_path, {"root/proc/devices": text}), "c")[196]) == 100_000


def test_a_zombie_and_a_thread_of_the_kernel(tmp_path: Path) -> None:
    fields = " ".join(["0"] * 30)
    files = {
        "root/proc/2/stat": f"2 (kthreadd) S 0 0 0 0 -1 2129984 {fields}\n",
        "root/proc/3/status": "Name:\tx\nState:\tZ (zombie)\n",
        "root/proc/4/status": "Name:\tx\nState:\tS (sleeping)\n",
        "root/proc/4/stat": f"4 (a) b) S 0 0 0 0 -1 4194304 {fields}\n",
    }
    found = host(tmp_path, files)
    with pytest.raises(NotSupported, match="process 2 is a kernel thread"):
        process.require(found, 2)
    with pytest.raises(NotFound, match="process 3 has ended"):
        process.require(found, 3)
    process.require(found, 4)
