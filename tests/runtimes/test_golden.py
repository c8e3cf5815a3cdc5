# SPDX-License-Identifier: Apache-2.0
"""What each engine's files become, by preset and by version: tests/data/runtimes/after holds them.

``python -m tests.runtimes.test_golden`` writes them again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpuiso.host.recorded import RecordedHost
from gpuiso.runtimes.engine import Request
from gpuiso.runtimes.plan import ENGINES, Plan, make_plan
from tests.runtimes.hosts import DATA, before, host_with

AFTER = DATA / "after"
RUNTIME = "/usr/bin/nvidia-container-runtime"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"


@dataclass(frozen=True)
class Case:
    """An engine on a host: where its file is and what is in it (a name in tests/data/runtimes/before, or none)."""

    name: str
    engine: str
    path: str
    old: str | None
    presets: tuple[str, ...]
    settings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    there: tuple[str, ...] = (RUNTIME,)
    files: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None


_ALL = ("rootful", "rootless", "hardened", "cdi")
_TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
_DOCKER = "/etc/docker/daemon.json"
_CONTAINERD = "/etc/containerd/config.toml"
_CRIO = "/etc/crio/crio.conf.d/99-gpuiso.conf"
_PODMAN = "/etc/containers/containers.conf.d/50-gpuiso.conf"
_KUBELET = "/var/lib/kubelet/config.yaml"
_WITHOUT_ROOTLESS = ("rootful", "hardened", "cdi")

CASES = (
    Case("toolkit", "nvidia-container-runtime", _TOOLKIT, "toolkit.toml", _ALL, file=_TOOLKIT),
    Case("toolkit-new", "nvidia-container-runtime", _TOOLKIT, None, _ALL, file=_TOOLKIT),
    Case(
        "toolkit-set",
        "nvidia-container-runtime",
        _TOOLKIT,
        "toolkit.toml",
        ("",),
        ("nvidia-container-cli.user=root:video", "features.disable-imex-channel-creation=true", "swarm-resource=GPU"),
    ),
    Case("docker", "docker", _DOCKER, "docker.json", _ALL, versions={"dockerd": "Docker version 26.1.5"}, file=_DOCKER),
    Case("docker-new", "docker", _DOCKER, None, ("rootful", "cdi")),
    Case("docker-20", "docker", _DOCKER, "docker.json", ("rootful",), versions={"dockerd": "Docker version 20.10.24"}),
    Case("containerd-1", "containerd", _CONTAINERD, "containerd-1.toml", ("rootful",)),
    Case("containerd-2", "containerd", _CONTAINERD, "containerd-2.toml", _WITHOUT_ROOTLESS),
    Case(
        "containerd-2-old",
        "containerd",
        _CONTAINERD,
        "containerd-2.toml",
        ("rootful",),
        versions={"containerd": "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3"},
    ),
    Case("containerd-3", "containerd", _CONTAINERD, "containerd-3.toml", _WITHOUT_ROOTLESS),
    Case(
        "containerd-3-drop-in",
        "containerd",
        "/etc/containerd/conf.d/90-gpu.toml",
        None,
        ("rootful", "cdi"),
        versions={"containerd": "containerd github.com/containerd/containerd/v2 v2.2.1 dea7da5"},
        files={_CONTAINERD: before("containerd-3.toml")},
        file="/etc/containerd/conf.d/90-gpu.toml",
    ),
    Case(
        "containerd-new",
        "containerd",
        _CONTAINERD,
        None,
        ("rootful",),
        versions={"containerd": "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7"},
    ),
    Case("crio", "crio", _CRIO, None, _WITHOUT_ROOTLESS, files={"/etc/crio/crio.conf": before("crio.conf")}),
    Case("podman", "podman", _PODMAN, "podman.conf", _ALL, file=_PODMAN),
    Case("podman-new", "podman", _PODMAN, None, ("rootful", "cdi")),
    Case(
        "k3s-2",
        "k3s",
        f"{K3S}/config.toml.tmpl",
        "k3s.tmpl",
        ("rootful",),
        there=("/run/current-system/sw/bin/nvidia-container-runtime",),
        files={f"{K3S}/config.toml": before("containerd-2.toml")},
    ),
    Case(
        "k3s-3",
        "k3s",
        f"{K3S}/config-v3.toml.tmpl",
        None,
        ("",),
        (
            "containerd.runtimes.gpu.runtime_type=io.containerd.runc.v2",
            f"containerd.runtimes.gpu.options.BinaryName={RUNTIME}",
        ),
        files={f"{K3S}/config.toml": before("containerd-3.toml")},
    ),
    Case("kubelet", "kubelet", _KUBELET, "kubelet.yaml", ("cdi", ""), ("cpuManagerPolicy=none",)),
    Case("kubelet-1.30", "kubelet", _KUBELET, "kubelet.yaml", ("cdi",), versions={"kubelet": "Kubernetes v1.30.4"}),
)


def each() -> Iterator[tuple[str, Case, str]]:
    for case in CASES:
        for preset in case.presets:
            ending = Path(case.old or case.path).suffix
            yield f"{case.name}-{preset or 'set'}{ending}", case, preset


def host(directory: Path, case: Case, files: Mapping[str, str]) -> RecordedHost:
    return host_with(directory, files, case.versions, case.there)


def files_before(case: Case) -> dict[str, str]:
    return dict(case.files) | ({case.path: before(case.old)} if case.old is not None else {})


def plan_of(directory: Path, case: Case, preset: str, files: Mapping[str, str]) -> Plan:
    settings = case.settings if not preset or case.engine == "nvidia-container-runtime" else ()
    asked = Request(host(directory, case, files), case.file, preset or None, settings, "/home/u/.config")
    return make_plan(ENGINES[case.engine], asked)


def written(plan: Plan) -> str:
    """The files of a plan as the golden ones hold them: the first as it is, those beside it below their names."""
    first, *others = plan.files
    return first.new + "".join(f"==> {other.path}\n{other.new}" for other in others if other.changed)


@pytest.mark.parametrize(("name", "case", "preset"), [pytest.param(*one, id=one[0]) for one in each()])
def test_files_become(name: str, case: Case, preset: str, tmp_path: Path) -> None:
    files = files_before(case)
    plan = plan_of(tmp_path / "first", case, preset, files)
    assert plan.files[0].path == case.path
    assert written(plan) == (AFTER / name).read_bytes().decode()

    # A second time there is nothing to do, whatever the engine and the file.
    files |= {change.path: change.new for change in plan.files}
    again = plan_of(tmp_path / "second", replace(case, old=None), preset, files)
    assert [change.path for change in again.files if change.changed] == []
    assert [change.diff() for change in again.files] == [""] * len(again.files)


def test_every_file_is_of_a_case() -> None:
    assert sorted(path.name for path in AFTER.iterdir()) == sorted(name for name, _, _ in each())


def regenerate() -> None:
    for name, case, preset in each():
        with tempfile.TemporaryDirectory() as directory:
            text = written(plan_of(Path(directory) / "host", case, preset, files_before(case)))
        AFTER.mkdir(exist_ok=True)
        (AFTER / name).write_bytes(text.encode())
        print(os.fspath(AFTER / name))


if __name__ == "__main__":
    regenerate()
