# SPDX-License-Identifier: Apache-2.0
"""Hosts with some configuration files and programs, as records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gpuiso.host.recorded import RecordedHost
from tests.support import REPOSITORY, make_fake_tree

__all__ = ["DATA", "before", "host_with", "record_with"]

DATA = REPOSITORY / "tests/data/runtimes"
_DIRECTORIES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit", "run/current-system/sw/bin")
#: Paths that are looked for and are not there, unless a test has them or something below them.
NOWHERE = (
    *("/etc/containerd", "/etc/cni", "/etc/containers", "/etc/crio", "/etc/docker", "/etc/nvidia-container-runtime"),
    *("/home", "/opt", "/run", "/usr", "/var/lib"),
)


def before(name: str) -> str:
    return (DATA / "before" / name).read_bytes().decode()


def record_with(
    directory: Path,
    files: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    there: tuple[str, ...] = (),
) -> Path:
    """A record with ``files``; ``versions`` is what programs say to --version; ``there`` are paths that exist."""
    header: dict[str, str | bool] = {
        "format": "gpuiso-host/1",
        "captured": "2026-11-30T00:00:00Z",
        "kernel": "6.18.0",
        "note": "",
    }
    header |= {"cgroup_mode": "unified", "systemd": True}
    nodes = [{"path": path, "type": "f", "mode": "0755", "uid": 0, "gid": 0} for path in there]
    commands = [
        {"argv": [name, "--version"], "exit": 0, "stdout": said, "stderr": "", "seconds": 0.1, "timed_out": False}
        for name, said in (versions or {}).items()
    ]
    make_fake_tree(
        directory,
        {
            "record.json": json.dumps(header),
            "nodes.jsonl": "".join(json.dumps(node) + "\n" for node in nodes),
            "absent.json": json.dumps(_absent((*(files or {}), *there))),
            "tools/commands.json": json.dumps(commands),
            "root": None,
            **{f"root{path}": text for path, text in (files or {}).items()},
        },
    )
    return directory


def host_with(
    directory: Path,
    files: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    there: tuple[str, ...] = (),
) -> RecordedHost:
    return RecordedHost(str(record_with(directory, files, versions, there)))


def _absent(there: tuple[str, ...]) -> list[str]:
    """The paths of NOWHERE; of those that have something below them, what is looked for beside it."""
    absent = [path for path in NOWHERE if not any(one.startswith(f"{path}/") for one in there)]
    looked_for = (
        *(f"/{directory}/nvidia-container-runtime{ending}" for ending in ("", ".cdi") for directory in _DIRECTORIES),
        *("/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock"),
        *("/etc/containerd/config.toml", "/etc/containerd/conf.d", "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"),
        *(f"/etc/containers/oci/hooks.d{rest}" for rest in ("", "/nothing")),
        *("/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/config.yaml"),
        *(
            f"/var/lib/rancher/k3s/agent/etc/containerd/config{name}"
            for name in (".toml", ".toml.tmpl", "-v3.toml.tmpl")
        ),
        *("/etc/crio/crio.conf.d/99-gpuiso.conf", "/etc/containers/containers.conf.d/50-gpuiso.conf"),
        *("/usr/share/containers/oci/hooks.d", "/etc/containerd/conf.d/90-gpu.toml"),
    )
    absent += [path for path in looked_for if not any(one == path or one.startswith(f"{path}/") for one in there)]
    return absent
