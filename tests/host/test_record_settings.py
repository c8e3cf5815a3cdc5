# SPDX-License-Identifier: Apache-2.0
"""No command and no environment of a unit or container gets into a redacted record; what decides about devices does."""

from __future__ import annotations

import json

from gpuiso.host.record_files import kept_bytes, redacted_bytes
from gpuiso.host.redact import Redactor

UNIT = """[Unit]
Description=Secret project
[Service]
Environment=API_KEY=hunter2
ExecStartPre=/bin/sh -c 'echo +devices > /sys/fs/cgroup/a.slice/cgroup.subtree_control'
ExecStart=-/opt/worker --token=hunter2
DeviceAllow=/dev/nvidia0 rw
PrivateDevices=no
"""


def test_a_unit() -> None:
    data = redacted_bytes("/etc/systemd/system/worker.service", UNIT.encode(), Redactor(b"k"))
    assert data is not None
    text = data.decode()
    assert "hunter2" not in text
    assert "Secret" not in text
    kept = [line for line in text.splitlines() if line]
    assert kept == [
        "[Unit]",
        "[Service]",
        "ExecStartPre=/bin/sh -c 'echo +devices > /sys/fs/cgroup/a.slice/cgroup.subtree_control'",
        "ExecStart=-/opt/worker",
        "DeviceAllow=/dev/nvidia0 rw",
        "PrivateDevices=no",
    ]
    assert len(text.splitlines()) == len(UNIT.splitlines())


def test_an_oci_config() -> None:
    config = {
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", "DB=hunter2"], "args": ["serve", "--key", "hunter2"]},
        "annotations": {"io.kubernetes.cri.container-name": "hunter2"},
        "linux": {"resources": {"devices": [{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}]}},
    }
    path = "/run/containerd/io.containerd.runtime.v2.task/moby/ab/config.json"
    data = redacted_bytes(path, json.dumps(config).encode(), Redactor(b"k"))
    assert data is not None
    assert b"hunter2" not in data
    kept = json.loads(data)
    assert kept["linux"] == config["linux"]
    assert kept["process"]["env"][0] == "NVIDIA_VISIBLE_DEVICES=0"
    assert kept["process"]["args"][0] == "serve"


def test_what_kind_of_container_it_is_stays_known() -> None:
    config = {"annotations": {"io.container.manager": "libpod", "owner": "hunter2"}, "process": {"env": ["A=hunter2"]}}
    for path in (
        "/home/user1/.local/share/containers/storage/vfs-containers/ab/userdata/config.json",
        "/b/config.json",
    ):
        data = redacted_bytes(path, json.dumps(config).encode(), Redactor(b"k"))
        assert data is not None
        assert b"hunter2" not in data
        assert json.loads(data)["annotations"]["io.container.manager"] == "libpod"
    state = {"init_process_pid": 7, "config": {"labels": ["bundle=/b", "who=hunter2"]}}
    data = redacted_bytes("/run/runc/x/state.json", json.dumps(state).encode(), Redactor(b"k"))
    assert data is not None
    assert json.loads(data)["config"]["labels"] == ["bundle=/b", "who=value1"]
    stored = [{"id": "ab", "metadata": json.dumps({"image-name": "hunter2", "pod-name": "hunter2"})}]
    data = redacted_bytes(
        "/var/lib/containers/storage/vfs-containers/containers.json", json.dumps(stored).encode(), Redactor(b"k")
    )
    assert data is not None
    assert b"hunter2" not in data
    assert "pod-name" in json.loads(json.loads(data)[0]["metadata"])


def test_a_state_that_is_no_json() -> None:
    assert redacted_bytes("/run/runc/x/state.json", b"password: hunter2", Redactor(b"k")) == b""


def test_the_client_of_docker_keeps_its_context_alone() -> None:
    text = b'{"auths": {"ghcr.io": {"auth": "hunter2"}}, "currentContext": "desktop-linux"}'
    assert json.loads(kept_bytes("/home/user1/.docker/config.json", text)) == {"currentContext": "desktop-linux"}
