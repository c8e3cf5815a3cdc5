# SPDX-License-Identifier: Apache-2.0
"""Containers and jobs that can open more GPUs than they were given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuiso.doctor.checks.access_words import target_of
from gpuiso.doctor.checks.cuda_words import gpu_name, inherited, openable
from gpuiso.doctor.checks.scope_devices import bears
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.doctor.toolkit import inspected
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.model import Gpu
from gpuiso.gpu.visibility.cuda import VARIABLE as CUDA_VARIABLE
from gpuiso.gpu.visibility.nvidia import nvidia_visible
from gpuiso.host import process
from gpuiso.kernel.capability import CAP_SYS_ADMIN

__all__: list[str] = []

PRIV_EXPOSE = Rule(
    "GPU-PRIV-EXPOSE",
    "warning",
    "A privileged container can open every GPU",
    "a privileged container has every device of the host, whatever GPUs were requested for it",
    (
        "https://github.com/NVIDIA/nvidia-docker/issues/764",
        "https://github.com/kubernetes/kubernetes/issues/81256",
    ),
)
IMG_NVD_ALL = Rule(
    "GPU-IMG-NVD-ALL",
    "warning",
    "The image's NVIDIA_VISIBLE_DEVICES=all gives the container every GPU",
    "NVIDIA's runtime is the default, nothing was requested, and the image's own variable takes all GPUs",
    (
        "https://github.com/NVIDIA/k8s-device-plugin/issues/61",
        "https://github.com/NVIDIA/gpu-operator/issues/372",
    ),
)
NO_CONSTRAIN = Rule(
    "GPU-SLURM-NO-CONSTRAIN",
    "warning",
    "Slurm does not keep jobs off the GPUs of others",
    "cgroup.conf lacks ConstrainDevices=yes: only CUDA_VISIBLE_DEVICES keeps jobs on their GPUs",
    ("https://slurm.schedmd.com/cgroup.conf.html", "https://slurm.schedmd.com/gres.html"),
)
NOT_IN_CGROUP = Rule(
    "GPU-DAEMON-NOT-IN-CGROUP",
    "warning",
    "The container is not in the cgroup of the job that started it",
    "containers are children of dockerd, not of the shell or job that asks for them: its device limits do not hold",
    ("https://github.com/NVIDIA/nvidia-container-runtime/issues/27",),
)

DEVICES = "NVIDIA_VISIBLE_DEVICES"
SLURM = "/etc/slurm/cgroup.conf"
_CONSTRAINED = re.compile(r"^\s*ConstrainDevices\s*=\s*yes\b", re.MULTILINE | re.IGNORECASE)
_CLIENTS = frozenset({"docker", "nerdctl", "podman-remote"})


def _cgroup(subject: Subject) -> str:
    places = process.cgroups(subject.host, subject.pid)
    return places.get("") or places.get("devices") or "/"


def _can_open(gpus: list[Gpu]) -> list[Evidence]:
    return [Evidence(gpu.node.path, "can be opened") for gpu in gpus if gpu.node is not None]


def _given(subject: Subject) -> list[Gpu]:
    """The GPUs that the container's environment asks NVIDIA's runtime for."""
    chosen = nvidia_visible(subject.machine.nvidia, subject.env).gpus
    return [subject.machine.nvidia[gpu.physical] for gpu in chosen]


def _privileged(subject: Subject, container: str | None) -> Evidence | None:
    """What shows that a container is privileged: Docker says so, or its root has every capability of the host's."""
    if container is not None:
        try:
            view = inspected(subject.host, container)
        except Unknown:
            view = None
        if view is not None:
            privileged = bool((view.get("HostConfig") or {}).get("Privileged"))
            return Evidence(f"docker inspect {container[:12]}", "HostConfig.Privileged is true") if privileged else None
    own = subject.status.cap_eff
    try:
        full = process.status(subject.host, 1).cap_eff
    except (NotFound, Unknown):
        full = (1 << 41) - 1
    if not own >> CAP_SYS_ADMIN & 1 or own != full:
        return None
    return Evidence(f"/proc/{subject.pid}/status", f"CapEff {own:016x}: every capability of the host")


@process_check(PRIV_EXPOSE)
def privileged(subject: Subject) -> Iterator[Finding]:
    """All GPUs can be opened although some or none were given."""
    gpus = list(subject.machine.nvidia)
    if not gpus or not (subject.asked or DEVICES in subject.env) or subject.container is None:
        return
    target = target_of(subject, None)
    shown = _privileged(subject, target.container)
    if shown is None or len(openable(subject)) < len(gpus) or not bears(subject, _cgroup(subject)):
        return
    given = _given(subject)
    if len(given) == len(gpus) or (not given and not subject.asked):
        return  # it is to have them all; or an agent of the host, of which nobody asked
    what = ", ".join(map(gpu_name, given)) if given else "no GPU"
    pod = "kubepods" in _cgroup(subject)
    yield PRIV_EXPOSE.finding(
        f"The container of {subject.comm} (pid {subject.pid}) was given {what}, and can open all {len(gpus)} GPUs of"
        " this host: a privileged container has every device node, and no device filter.",
        severity="warning" if given else "info",
        evidence=[shown, subject.environ_evidence(DEVICES), *_can_open(gpus)],
        fix=[
            Fix("Leave out privileged: true of the pod, and add the capability it needs")
            if pod
            else Fix(
                "Start it without --privileged, and add what it needs (--cap-add, --device)",
                f"docker run --device nvidia.com/gpu={(given or gpus)[0].uuid or 'UUID'} IMAGE",
            )
        ],
        target=target,
    )


@process_check(IMG_NVD_ALL)
def image_takes_all(subject: Subject) -> Iterator[Finding]:
    """The variable says all, and nobody requested that."""
    gpus = list(subject.machine.nvidia)
    if subject.env.get(DEVICES) != "all" or len(gpus) < 2 or subject.container is None:
        return
    target = target_of(subject, None)
    cgroup = _cgroup(subject)
    evidence = [subject.environ_evidence(DEVICES)]
    if "kubepods" in cgroup:
        evidence.append(Evidence(f"/proc/{subject.pid}/cgroup", f"a pod of Kubernetes: {cgroup}"))
    elif target.container is not None and subject.asked:
        view = inspected(subject.host, target.container) or {}
        settings = view.get("HostConfig") or {}
        if settings.get("DeviceRequests") or not str(settings.get("Runtime") or "").startswith("nvidia"):
            return
        where = f"docker inspect {target.container[:12]}"
        evidence.append(Evidence(where, f"HostConfig.Runtime is {settings['Runtime']}, DeviceRequests is empty"))
    else:
        return
    if _privileged(subject, target.container) or len(openable(subject)) < len(gpus) or not bears(subject, cgroup):
        return
    pod = "kubepods" in cgroup
    by = "The device plugin names GPUs by UUID; so the value" if pod else "No GPU was requested; so the value"
    yield IMG_NVD_ALL.finding(
        f"{subject.comm} (pid {subject.pid}) can open all {len(gpus)} GPUs because {DEVICES}=all stands in its"
        f" environment. {by} comes from the image (or its settings), and NVIDIA's runtime, the default one, obeys it.",
        severity="warning" if pod else "info",
        evidence=[*evidence, *_can_open(gpus)],
        fix=[
            Fix(
                "Take the variable from privileged containers only (the device plugin then needs"
                " DEVICE_LIST_STRATEGY=volume-mounts, or CDI)",
                "sudo nvidia-ctk config --set accept-nvidia-visible-devices-envvar-when-unprivileged=false --in-place",
            ),
            Fix(f"Or set {DEVICES}=void for what is to have no GPU"),
        ],
        target=target,
    )


@process_check(NO_CONSTRAIN)
def slurm_without_constraint(subject: Subject) -> Iterator[Finding]:
    """A job that can open more GPUs than Slurm gave it."""
    gpus = list(subject.machine.nvidia)
    if "SLURM_JOB_ID" not in subject.env or len(gpus) < 2 or subject.container is not None:
        return
    given = _of_the_job(subject)
    if len(given) == len(gpus) or not (given or subject.asked) or inherited(subject, "SLURM_JOB_ID", CUDA_VARIABLE):
        return
    text = subject.host.text(SLURM)
    if text is not None and _CONSTRAINED.search(text):
        return
    can = openable(subject)
    others = [gpu for gpu in can if gpu not in given]
    if len(can) <= len(given) or not others:
        return
    yield NO_CONSTRAIN.finding(
        f"Slurm gave job {subject.env['SLURM_JOB_ID']} {', '.join(map(gpu_name, given)) or 'no GPU'}, but"
        f" {subject.comm} (pid {subject.pid}) can open {', '.join(map(gpu_name, others))} as well: devices are not"
        " constrained, and only a variable keeps jobs on their GPUs.",
        evidence=[
            Evidence(SLURM, "does not exist" if text is None else "has no ConstrainDevices=yes"),
            *(subject.environ_evidence(name) for name in ("SLURM_JOB_ID", CUDA_VARIABLE)),
            *_can_open(others),
        ],
        fix=[
            Fix(
                "Constrain devices on every node (TaskPlugin must have task/cgroup, gres.conf must name the nodes); it"
                " counts for jobs that start after it (not tried here)",
                f"echo ConstrainDevices=yes | sudo tee -a {SLURM} && sudo systemctl restart slurmd",
            )
        ],
        target=target_of(subject, None),
    )


def _of_the_job(subject: Subject) -> list[Gpu]:
    """The GPUs that Slurm's variable selects, as a list without constraint counts them."""
    if CUDA_VARIABLE not in subject.env:
        return []
    return [subject.machine.nvidia[gpu.physical] for gpu in subject.visibility.gpus]


@process_check(NOT_IN_CGROUP)
def outside_of_its_job(subject: Subject) -> Iterator[Finding]:
    """A container beside the cgroup whose limits were meant for it."""
    gpus = list(subject.machine.nvidia)
    if not subject.asked or len(gpus) < 2:
        return
    container = subject.container
    cgroup = _cgroup(subject)
    if container is None or "slurm" in cgroup:
        return
    can = openable(subject)
    client = _client(subject, container.id, len(can))
    if client is None:
        return
    pid, place, fewer = client
    yield NOT_IN_CGROUP.finding(
        f"Container {container.short} was started by pid {pid}, which may open {fewer} of {len(gpus)} GPUs in its"
        f" cgroup {place}. The container is a child of its engine and lies in {cgroup}: it may open {len(can)}.",
        evidence=[
            Evidence(f"/proc/{pid}/cmdline", _command(subject, pid)),
            Evidence(f"/proc/{pid}/cgroup", place),
            Evidence(f"/proc/{subject.pid}/cgroup", cgroup),
            *_can_open(can),
        ],
        fix=[
            Fix("Request the GPUs for the container itself", f"docker run --gpus device={gpus[0].uuid or 0} IMAGE"),
            Fix("Or run it with an engine without a daemon (podman, apptainer), which stays in the job's cgroup"),
        ],
        target=target_of(subject, None),
    )


def _command(subject: Subject, pid: int) -> str:
    return " ".join((subject.host.text(f"/proc/{pid}/cmdline") or "").split("\0")).strip()


def _client(subject: Subject, container: str, openable_count: int) -> tuple[int, str, int] | None:
    """A client of the engine that waits for this container and may itself open fewer GPUs: pid, cgroup, how many."""
    host = subject.host
    view = inspected(host, container)
    if view is None:
        return None
    names = {container, container[:12], str(view.get("Name") or "").lstrip("/")}
    names.add(str((view.get("Config") or {}).get("Image") or ""))
    for pid in host.pids():
        if process.command_name(host, pid) not in _CLIENTS:
            continue
        try:
            words = (host.text(f"/proc/{pid}/cmdline") or "").split("\0")
            place = process.unified_cgroup(host, pid) or "/"
        except (NotFound, Unknown):
            continue
        if "run" not in words or not (names - {""}) & set(words):
            continue
        nodes = [gpu.node.path for gpu in subject.machine.nvidia if gpu.node is not None]
        caller = Subject(subject.machine, pid, asked=False)
        fewer = sum(caller.access(path).verdict == "allow" for path in nodes)
        if fewer < openable_count:
            return pid, place, fewer
    return None
