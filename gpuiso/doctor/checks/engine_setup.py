# SPDX-License-Identifier: Apache-2.0
"""Container engines that are not set up for NVIDIA's GPUs: wrong Docker, wrong containerd, hooks that may not act."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.doctor.toolkit import CONFIG, toolkit_config
from gpuiso.errors import NotFound, Unknown
from gpuiso.host.decimals import decimal
from gpuiso.host.protocol import Host

__all__ = [
    "ENVVAR_REFUSED",
    "NESTED_EPERM",
    "NO_RUNTIME",
    "OLD_CGV2",
    "ROOTLESS_EPERM",
    "in_lxc",
    "no_cgroups_fix",
    "rootless_users",
]

TOOLKIT_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"

NO_RUNTIME = Rule(
    "GPU-NVCT-NO-RUNTIME",
    "error",
    "A container that asks for GPUs does not get NVIDIA's runtime",
    "the NVIDIA runtime or hook is not installed, not known to the engine, or not the one that the container ran with",
    (
        "https://github.com/NVIDIA/gpu-operator/issues/1502",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/406",
        TOOLKIT_GUIDE,
    ),
)
OLD_CGV2 = Rule(
    "GPU-NVCT-OLD-CGV2",
    "error",
    "libnvidia-container is too old for cgroup v2",
    "libnvidia-container before 1.8.0 looks for the devices controller of cgroup v1, which this host does not have",
    (
        "https://github.com/NVIDIA/nvidia-docker/issues/1447",
        "https://github.com/NVIDIA/k8s-device-plugin/issues/324",
    ),
)
ROOTLESS_EPERM = Rule(
    "GPU-ROOTLESS-BPF-EPERM",
    "error",
    "NVIDIA's hook may not change device filters for a rootless engine",
    "a rootless engine runs NVIDIA's hook without no-cgroups = true: bpf(2) is refused, and the container fails",
    (
        "https://github.com/NVIDIA/libnvidia-container/issues/154",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1487",
    ),
)
NESTED_EPERM = Rule(
    "GPU-NESTED-CGROUP-EPERM",
    "error",
    "Inside an unprivileged LXC container nobody may write device rules",
    "Docker runs in an unprivileged LXC container without no-cgroups = true: NVIDIA's hook may not write device rules",
    (
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/290",
        "https://github.com/NVIDIA/nvidia-container-runtime/issues/78",
    ),
)
ENVVAR_REFUSED = Rule(
    "GPU-ENVVAR-UNPRIV-REFUSED",
    "error",
    "The toolkit takes NVIDIA_VISIBLE_DEVICES from privileged containers only",
    "the toolkit is hardened (accept-nvidia-visible-devices-envvar-when-unprivileged = false), and a container selects"
    " GPUs by the variable",
    (
        "https://github.com/NVIDIA/k8s-device-plugin/issues/203",
        "https://github.com/NVIDIA/gpu-operator/issues/421",
    ),
)
DOCKER_SNAP = Rule(
    "GPU-DOCKER-SNAP",
    "warning",
    "Docker is installed as a snap, which keeps it from the driver",
    "Docker from snap is confined: it finds neither the driver's libraries nor NVIDIA's runtime on a classic system",
    (
        "https://github.com/canonical/docker-snap/issues/148",
        "https://github.com/NVIDIA/nvidia-docker/issues/1637",
    ),
)
DESKTOP_CTX = Rule(
    "GPU-DOCKER-DESKTOP-CTX",
    "warning",
    "Docker's context points at a virtual machine without GPUs",
    "the docker command talks to Docker Desktop, whose virtual machine on Linux has no GPU",
    ("https://docs.docker.com/desktop/features/gpu/", "https://docs.docker.com/engine/manage-resources/contexts/"),
)

_DAEMON = "/etc/docker/daemon.json"
_SNAP_PID = "/run/snap.docker/docker.pid"
_HOOK_DIRECTORIES = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_HOOK = re.compile(r"nvidia-container-(?:runtime-hook|toolkit)\b")
#: Engines with a containerd of their own, which the usual configuration does not reach.
_OWN_CONTAINERD = {
    "k3s": ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "sudo systemctl restart k3s"),
    "RKE2": ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "sudo systemctl restart rke2-server"),
    "MicroK8s": ("/var/snap/microk8s/current/args/containerd.toml", "sudo microk8s enable nvidia"),
}
_CONTAINERD = ("/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml")
_MINIMUM_CGV2 = (1, 8)


def in_lxc(host: Host) -> bool:
    """Whether this host is itself an unprivileged LXC (or LXD, Incus) container."""
    try:
        manager = (host.text("/run/systemd/container") or "").strip()
        mapped = (host.text("/proc/self/uid_map") or "").split()
    except Unknown:
        return False
    return manager == "lxc" and mapped not in ([], ["0", "0", "4294967295"])


def no_cgroups_fix(host: Host) -> list[Fix]:
    """How to tell the hook to leave device filters alone, and the way that needs no hook."""
    try:
        named = "no-cgroups" in (host.text(CONFIG) or "")
    except Unknown:
        named = False
    command = "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"
    if named:
        command = f"sudo sed -i 's/^#*[[:space:]]*no-cgroups[[:space:]]*=.*/no-cgroups = true/' {CONFIG}"
    return [
        Fix("Tell the hook to leave device filters alone; engines of root must then use CDI", command),
        Fix(
            "Or give the container its GPU by CDI, which needs no hook", "podman run --device nvidia.com/gpu=all IMAGE"
        ),
    ]


def _exists(host: Host, path: str) -> bool:
    try:
        return host.stat(path) is not None
    except Unknown:
        return False


def _json(host: Host, path: str) -> dict[str, Any]:
    try:
        document = json.loads(host.text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


@machine_check(OLD_CGV2)
def too_old_for_v2(machine: Machine) -> Iterator[Finding]:
    """The version of nvidia-container-cli, on a host without cgroup v1."""
    host = machine.host
    if not machine.nvidia or host.cgroup_mode != "unified" or not _exists(host, "/usr/bin/nvidia-container-cli"):
        return
    result = host.command(("nvidia-container-cli", "--version"))
    match = None if result is None else re.search(r"(?:cli-)?version: (\d{1,4})\.(\d{1,4})\.(\d{1,4})", result.stdout)
    if match is None or (int(match[1]), int(match[2])) >= _MINIMUM_CGV2:
        return
    version = ".".join(match.groups())
    yield OLD_CGV2.finding(
        f"libnvidia-container {version} does not know cgroup v2, and this host has nothing else: every container that"
        " gets its GPU through NVIDIA's hook fails with 'cgroup subsystem devices not found'.",
        severity="warning",
        evidence=[
            Evidence("nvidia-container-cli --version", version),
            Evidence("/proc/self/mountinfo", "cgroup v2 alone is mounted"),
        ],
        fix=[
            Fix(
                "Install a current toolkit",
                "sudo apt-get install -y --only-upgrade nvidia-container-toolkit libnvidia-container-tools"
                " libnvidia-container1",
            )
        ],
    )


@machine_check(NO_RUNTIME)
def runtime_not_loaded(machine: Machine) -> Iterator[Finding]:
    """The runtime stands in daemon.json, and the running Docker does not have it."""
    host = machine.host
    if not machine.nvidia:
        return
    runtimes = _json(host, _DAEMON).get("runtimes")
    if not isinstance(runtimes, dict) or "nvidia" not in runtimes:
        return
    info = host.docker_info()
    loaded = None if info is None else info.get("Runtimes")
    if not isinstance(loaded, dict) or "nvidia" in loaded:
        return
    yield NO_RUNTIME.finding(
        f"{_DAEMON} defines the runtime nvidia, but the Docker that runs does not have it: it was not restarted since,"
        " or reads another configuration.",
        severity="warning",
        title="Docker has not read the configuration with NVIDIA's runtime",
        evidence=[
            Evidence(_DAEMON, "runtimes has nvidia"),
            Evidence("docker info: Runtimes", ", ".join(sorted(loaded)) or "none"),
        ],
        fix=[Fix("Restart Docker (it stops containers without live-restore)", "sudo systemctl restart docker")],
    )


@machine_check(NO_RUNTIME)
def another_containerd(machine: Machine) -> Iterator[Finding]:
    """k3s, RKE2 and MicroK8s bring a containerd of their own; the toolkit configured the other one."""
    host = machine.host
    if not machine.nvidia:
        return
    for product, (path, command) in _OWN_CONTAINERD.items():
        try:
            text = host.text(path)
            others = [each for each in _CONTAINERD if "nvidia-container-runtime" in (host.text(each) or "")]
        except Unknown:
            continue  # of another product, or the file that would tell was not recorded
        if text is None or "nvidia" in text or not others:
            continue
        yield NO_RUNTIME.finding(
            f"NVIDIA's runtime is configured in {others[0]}, but {product} runs a containerd of its own with {path},"
            " which does not have it: its pods run without GPUs.",
            severity="warning",
            title=f"NVIDIA's runtime is configured for a containerd that {product} does not use",
            evidence=[
                Evidence(others[0], "names nvidia-container-runtime"),
                Evidence(path, "does not name nvidia"),
            ],
            fix=[
                Fix(
                    f"Have {product} take it up (k3s and RKE2 look for nvidia-container-runtime when they start; the"
                    " GPU operator takes CONTAINERD_CONFIG and CONTAINERD_SOCKET); not tried here",
                    command,
                )
            ],
        )


@machine_check(ROOTLESS_EPERM)
def rootless_with_hook(machine: Machine) -> Iterator[Finding]:
    """Rootless podman or Docker on a host whose NVIDIA hook is told to write device rules."""
    host = machine.host
    if not machine.nvidia or host.cgroup_mode == "legacy":
        return
    users = list(rootless_users(host))
    if not users:
        return
    hooks = list(_hooks(host))
    config = toolkit_config(host) if hooks else None
    if config is None or config.no_cgroups:
        return
    yield ROOTLESS_EPERM.finding(
        f"uid {', '.join(map(str, users))} runs containers without root. The hook in {hooks[0]} would have to change"
        " their device filters, which only root may: such a container that asks for a GPU fails with"
        " 'bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted'.",
        severity="warning",
        title="Rootless containers that ask for a GPU fail: NVIDIA's hook may not change device filters",
        evidence=[
            *(Evidence(f"/run/user/{uid}", "holds the state of a rootless engine") for uid in users),
            Evidence(hooks[0], "runs NVIDIA's hook for every engine that reads hooks.d"),
            Evidence(config.path, "no-cgroups is not true"),
        ],
        fix=no_cgroups_fix(host),
    )


def rootless_users(host: Host) -> Iterator[int]:
    for name in host.listdir("/run/user") or ():
        places = (f"/run/user/{name}/{each}" for each in ("libpod", "docker.pid"))
        uid = decimal(name)
        if uid and any(_exists(host, place) for place in places):
            yield uid


def _hooks(host: Host) -> Iterator[str]:
    for directory in _HOOK_DIRECTORIES:
        try:
            names = host.listdir(directory) or ()
        except Unknown:
            continue
        for name in names:
            if name.endswith(".json") and _HOOK.search(host.text(f"{directory}/{name}") or ""):
                yield f"{directory}/{name}"


@machine_check(NESTED_EPERM)
def nested_with_hook(machine: Machine) -> Iterator[Finding]:
    """Docker with NVIDIA's runtime inside an unprivileged LXC container."""
    host = machine.host
    if not machine.nvidia or not in_lxc(host):
        return
    config = toolkit_config(host)
    if config is None or config.no_cgroups or "nvidia" not in (_json(host, _DAEMON).get("runtimes") or {}):
        return
    yield NESTED_EPERM.finding(
        "This host is an unprivileged LXC container, in which nobody may write device rules, and NVIDIA's runtime is"
        " told to write them for Docker's containers: they fail to start.",
        severity="warning",
        evidence=[
            Evidence("/run/systemd/container", "lxc"),
            Evidence("/proc/self/uid_map", " ".join((host.text("/proc/self/uid_map") or "").split())),
            Evidence(config.path, "no-cgroups is not true"),
        ],
        fix=[
            *no_cgroups_fix(host)[:1],
            Fix("The outer container must have the GPU nodes, and its own filter must allow them"),
        ],
    )


@machine_check(DOCKER_SNAP)
def snap(machine: Machine) -> Iterator[Finding]:
    """A Docker that runs confined."""
    host = machine.host
    if not machine.nvidia:
        return
    root = ""
    runtimes: Any = None
    try:
        info = host.docker_info()
        if info is not None:
            root, runtimes = str(info.get("DockerRootDir") or ""), info.get("Runtimes")
    except Unknown:
        if not _exists(host, _SNAP_PID):
            raise
    confined = root.startswith("/var/snap/docker/")
    if not confined and (root or not _exists(host, _SNAP_PID)):
        return
    works = isinstance(runtimes, dict) and "nvidia" in runtimes
    yield DOCKER_SNAP.finding(
        "The Docker that runs comes from snap. It is confined, and NVIDIA's toolkit of the host does not reach it"
        + ("; it brought a runtime nvidia of its own." if works else ": it has no runtime nvidia."),
        severity="info" if works else "warning",
        title="Docker is installed as a snap" if works else None,
        evidence=[
            Evidence("docker info: DockerRootDir", root) if confined else Evidence(_SNAP_PID, "exists"),
            *([Evidence("docker info: Runtimes", ", ".join(sorted(runtimes)))] if isinstance(runtimes, dict) else []),
        ],
        fix=[]
        if works
        else [
            Fix(
                "Replace it by Docker's own or the distribution's package (images and volumes of the snap are lost)",
                "sudo snap remove docker && sudo apt-get install -y docker.io",
            )
        ],
    )


@machine_check(DESKTOP_CTX)
def desktop_context(machine: Machine) -> Iterator[Finding]:
    """Users whose docker command talks to Docker Desktop's virtual machine."""
    host = machine.host
    if not machine.nvidia:
        return
    homes = ["/root"]
    try:
        homes += [f"/home/{name}" for name in host.listdir("/home") or ()]
    except Unknown:
        pass  # root's own may still tell
    for home in homes:
        path = f"{home}/.docker/config.json"
        try:
            context = _json(host, path).get("currentContext")
        except (Unknown, NotFound):
            continue  # not ours to read
        if isinstance(context, str) and context.startswith("desktop-"):
            yield DESKTOP_CTX.finding(
                f"The docker command of {home} talks to {context}: Docker Desktop, whose virtual machine has none of"
                " this host's GPUs. Containers started there find no GPU.",
                evidence=[Evidence(path, f"currentContext is {context}")],
                fix=[Fix("Talk to the Docker of this host, as that user", "docker context use default")],
                target=Target(),
            )
