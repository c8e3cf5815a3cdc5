# SPDX-License-Identifier: Apache-2.0
"""Conflicts that an engine would stumble over are found, with file and line; a sound configuration has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuiso.errors import BadInput, Unknown, UsageError
from gpuiso.runtimes.engine import Request
from gpuiso.runtimes.plan import ENGINES, Plan, make_plan
from tests.runtimes.hosts import before, host_with

RUNTIME = "/usr/bin/nvidia-container-runtime"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
DAEMON = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
CRI = '[plugins."io.containerd.grpc.v1.cri"'
KUBELET = "/var/lib/kubelet/config.yaml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"


def planned(
    directory: Path,
    engine: str,
    files: Mapping[str, str],
    *settings: str,
    preset: str | None = None,
    versions: Mapping[str, str] | None = None,
    there: tuple[str, ...] = (RUNTIME,),
    file: str | None = None,
    force: bool = False,
) -> Plan:
    host = host_with(directory, files, versions, there)
    request = Request(host, file, preset, settings, "/home/u/.config")
    return make_plan(ENGINES[engine], request, force=force)


@pytest.mark.parametrize(
    ("text", "there", "expected"),
    [
        ("", (), []),
        (before("toolkit.toml").replace("legacy", "auto"), (), ["warning:42: site.note is no key"]),
        (
            "[nvidia-container-cli]\nno-cgroups = true\n",
            ("/run/docker.sock",),
            ["error:2: no-cgroups = true, but /run/docker.sock is an engine of root"],
        ),
        ("[nvidia-container-cli]\nno-cgroups = true\n", (), []),
        (
            '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n',
            (),
            ["error:2: ldconfig = '/sbin/ldconfig' is refused"],
        ),
        (
            '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n[features]\nallow-ldconfig-from-container = true\n',
            (),
            ["warning:2: ldconfig = '/sbin/ldconfig' is a program of the container"],
        ),
        (
            '[nvidia-container-runtime]\nmode = "legacy"\n',
            (),
            ["warning:2: mode legacy writes device rules behind systemd"],
        ),
        ("[nvidia-container-runtime]\nruntimes = []\n", (), ["error:2: runtimes = [] leaves"]),
        ('[nvidia-container-runtime]\nmode = "fast"\n', (), ["error:2: nvidia-container-runtime.mode must be one of"]),
        (
            "[nvidia-container-cli]\nload-kmods = 1\n",
            (),
            ["error:2: nvidia-container-cli.load-kmods must be true or false"],
        ),
        ("nvidia-container-cli = 1\n", (), ["error:1: nvidia-container-cli must be a table"]),
        (
            '[nvidia-container-runtime]\nmode = "cdi"\n[nvidia-container-runtime-hook]\nskip-mode-detection = true\n',
            (),
            ["warning:4: skip-mode-detection = true with mode cdi"],
        ),
        (
            '[nvidia-ctk]\npath = "/opt/nvidia-ctk"\n',
            (),
            ["warning:2: path = '/opt/nvidia-ctk': there is no such file"],
        ),
        ("accept-nvidia-visible-devices-as-volume-mounts = true\n", (), ["info:1: mounts select devices"]),
    ],
)
def test_of_the_toolkit(text: str, there: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    plan = planned(tmp_path, "nvidia-container-runtime", {TOOLKIT: text}, there=(RUNTIME, *there))
    assert_problems(plan, expected)


def assert_problems(plan: Plan, expected: list[str]) -> None:
    found = [f"{one.severity}:{one.line}: {one.message}" for one in plan.problems]
    assert len(found) == len(expected), found
    for problem, start in zip(found, expected, strict=True):
        assert problem.startswith(start)


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ('{"features": {"cdi": true}}', "26.1.5", []),
        ('{"features": {"cdi": true}}', "20.10.24", ["error:1: features.cdi: Docker 20.10 has no CDI"]),
        (
            '{\n"cdi-spec-dirs": ["/etc/cdi"]}',
            "24.0.7",
            ["error:2: cdi-spec-dirs: Docker 24.0 has no CDI (25 has) and does"],
        ),
        ('{"default-runtime": "nvidia"}', "26.1.5", ["error:1: default-runtime is 'nvidia', which runtimes does not"]),
        ('{"default-runtime": "io.containerd.kata.v2"}', "26.1.5", []),
        ('{"runtimes": {"x": {}}}', "26.1.5", ["error:1: runtimes.x has neither path nor runtimeType"]),
        (
            '{"runtimes": {"x": {"path": "/opt/x", "runtimeType": "y"}}}',
            "26.1.5",
            ["error:1: runtimes.x has both", "warning:1: runtimes.x.path is /opt/x: there is no such file"],
        ),
        ('{"runtimes": {"runc": {"path": "runc"}}}', "26.1.5", ["error:1: runtimes.runc is Docker's own"]),
        ('{"exec-opts": ["native.cgroupdriver=none"]}', "26.1.5", ["error:1: exec-opts: native.cgroupdriver=none"]),
        ('{"seccomp-profile": "/opt/no.json"}', "26.1.5", ["error:1: seccomp-profile is /opt/no.json"]),
        ('{"features": {"cdi": "yes"}}', "26.1.5", ['error:1: features.cdi must be true or false, not "yes"']),
        ('{"features": true}', "26.1.5", ["error:1: features must be a table"]),
    ],
)
def test_of_docker(text: str, version: str, expected: list[str], tmp_path: Path) -> None:
    versions = {"dockerd": f"Docker version {version}, build 1"}
    plan = planned(tmp_path, "docker", {DAEMON: text}, versions=versions)
    assert_problems(plan, expected)


@pytest.mark.parametrize(
    ("text", "versions", "expected"),
    [
        (before("containerd-2.toml"), "1.7.24", []),
        ('version = 2\ndisabled_plugins = ["cri"]\n', "1.7.24", ["warning:2: disabled_plugins names the CRI plugin"]),
        (f"version = 2\n{CRI}]\nenable_cdi = true\n", "1.6.20", ["error:3: enable_cdi: this containerd has no CDI"]),
        (
            f'version = 2\n{CRI}.containerd]\ndefault_runtime_name = "nvidia"\n',
            "1.7.24",
            ["error:3: default_runtime_name is 'nvidia'"],
        ),
        (
            f"version = 3\n{CRI}]\nenable_cdi = true\n",
            "2.1.0",
            ["warning:2: [plugins.io.containerd.grpc.v1.cri] is of another version of the file than 3"],
        ),
        (
            f"version = 2\n{CRI}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
            f"{CRI}.containerd.runtimes.nvidia.options]\nSystemdCgroup = false\n",
            "1.7.24",
            ["warning:5: SystemdCgroup of runtime nvidia differs from that of runc"],
        ),
    ],
)
def test_of_containerd(text: str, versions: str, expected: list[str], tmp_path: Path) -> None:
    said = {"containerd": f"containerd github.com/containerd/containerd {versions} 1"}
    assert_problems(planned(tmp_path, "containerd", {CONTAINERD: text}, versions=said), expected)


def test_of_containerd_the_last_file_decides(tmp_path: Path) -> None:
    top = 'version = 2\nimports = ["conf.d/*.toml"]\n' + f"{CRI}]\nenable_cdi = false\n"
    other = "/etc/containerd/conf.d/99-nvidia.toml"
    files = {CONTAINERD: top, other: f"version = 2\n{CRI}]\nenable_cdi = false\n", "/etc/containerd/conf.d/x.conf": "{"}
    plan = planned(tmp_path, "containerd", files, preset="cdi")
    assert [file.path for file in plan.files] == [other]
    assert "enable_cdi = true" in plan.files[0].new
    assert "is read after /etc/containerd/config.toml and decides" in plan.place.notes[0]


def test_of_containerd_a_drop_in_may_not_replace_the_table(tmp_path: Path) -> None:
    files = {CONTAINERD: before("containerd-2.toml")}
    with pytest.raises(UsageError, match="would replace the whole table of the CRI plugin in /etc/containerd/config"):
        planned(tmp_path, "containerd", files, preset="cdi", file="/etc/containerd/conf.d/90-gpu.toml")


def test_of_containerd_an_unknown_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"config.toml:2: version = 9: gpuiso knows versions 1 to 4"):
        planned(tmp_path, "containerd", {CONTAINERD: "\nversion = 9\n"})


@pytest.mark.parametrize(
    ("version", "dirs", "expected"),
    [
        ("5.6.0", '["/etc/cdi"]', []),
        ("5.4.2", '["/etc/cdi", "/var/run/cdi"]', ["info:2: podman 5.4 does not look at cdi_spec_dirs"]),
        ("4.3.1", '["/srv/cdi"]', ["warning:2: podman 4.3 does not look at cdi_spec_dirs"]),
    ],
)
def test_of_podman(version: str, dirs: str, expected: list[str], tmp_path: Path) -> None:
    files = {"/etc/containers/containers.conf.d/50-gpuiso.conf": f"[engine]\ncdi_spec_dirs = {dirs}\n"}
    versions = {"podman": f"podman version {version}"}
    assert_problems(planned(tmp_path, "podman", files, versions=versions), expected)


def test_of_podman_nvidias_old_hook_is_named(tmp_path: Path) -> None:
    hook = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
    files = {hook: '{"hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}'}
    plan = planned(tmp_path, "podman", files, preset="cdi")
    assert [(one.severity, one.file) for one in plan.problems] == [("info", hook)]
    hardened = planned(tmp_path / "again", "podman", files, preset="hardened")
    assert hardened.problems == ()


def test_of_crio(tmp_path: Path) -> None:
    drop_in = "/etc/crio/crio.conf.d/99-gpuiso.conf"
    text = '[crio.runtime]\ndefault_runtime = "x"\nadditional_devices = ["/dev/nvidia0:/dev/nvidia0:rwm"]\n'
    plan = planned(tmp_path, "crio", {drop_in: text})
    assert_problems(
        plan, ["error:2: default_runtime is 'x', which", "warning:3: additional_devices gives every container a GPU"]
    )
    assert plan.place.backups == "/etc/crio"


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("cpuManagerPolicy: none\n", "1.30.1", []),
        ("cpuManagerPolicy: static\n", "1.30.1", ["warning:1: cpuManagerPolicy is static"]),
        ("featureGates:\n  DevicePluginCDIDevices: true\n", "1.30.1", []),
        (
            "featureGates:\n  DevicePluginCDIDevices: false\n",
            "1.33.0",
            ["error:2: featureGates.DevicePluginCDIDevices is always on in 1.33"],
        ),
        ("cpuManagerPolicy: 1\n", "1.30.1", ["error:1: cpuManagerPolicy must be a text, not 1"]),
    ],
)
def test_of_the_kubelet(text: str, version: str, expected: list[str], tmp_path: Path) -> None:
    versions = {"kubelet": f"Kubernetes v{version}"}
    assert_problems(planned(tmp_path, "kubelet", {KUBELET: text}, versions=versions), expected)


def test_of_k3s_a_runtime_that_it_finds_itself_is_not_defined_twice(tmp_path: Path) -> None:
    files = {f"{K3S}/config.toml": before("containerd-3.toml")}
    plan = planned(tmp_path, "k3s", files, preset="rootful")
    assert not plan.changed
    assert "k3s adds the runtimes nvidia and nvidia-cdi itself" in plan.place.notes[0]
    twice = (f"containerd.runtimes.nvidia.options.BinaryName={RUNTIME}",)
    with pytest.raises(BadInput, match="runtime nvidia: k3s defines it itself when it finds"):
        planned(tmp_path / "again", "k3s", files, *twice)


def test_new_errors_are_refused_and_old_ones_are_not_in_the_way(tmp_path: Path) -> None:
    conflict = {TOOLKIT: "[nvidia-container-cli]\nno-cgroups = false\n"}
    set_it = ("nvidia-container-cli.no-cgroups=true",)
    there = (RUNTIME, "/run/docker.sock")
    with pytest.raises(BadInput, match=r"config.toml:2: no-cgroups = true, but /run/docker.sock") as refused:
        planned(tmp_path / "1", "nvidia-container-runtime", conflict, *set_it, there=there)
    assert refused.value.hint == "nothing was changed; --force writes it nevertheless"
    forced = planned(tmp_path / "2", "nvidia-container-runtime", conflict, *set_it, there=there, force=True)
    assert forced.changed
    already = {TOOLKIT: "[nvidia-container-cli]\nno-cgroups = true\n"}
    other = planned(tmp_path / "3", "nvidia-container-runtime", already, "disable-require=true", there=there)
    assert other.changed
    assert_problems(other, ["error:4: no-cgroups = true"])


def test_rootless_is_a_file_of_the_users_own(tmp_path: Path) -> None:
    plan = planned(tmp_path, "nvidia-container-runtime", {}, preset="rootless", there=(RUNTIME, "/run/docker.sock"))
    assert plan.files[0].path == "/home/u/.config/nvidia-container-runtime/config.toml"
    assert plan.problems == ()
    host = host_with(tmp_path / "again")
    with pytest.raises(UsageError, match="name it with --file"):
        make_plan(ENGINES["docker"], Request(host, preset="rootless"))


def test_what_is_not_recorded_is_not_taken_for_absent(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="not recorded"):
        planned(tmp_path, "docker", {}, file="/srv/daemon.json")
