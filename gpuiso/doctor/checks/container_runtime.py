# SPDX-License-Identifier: Apache-2.0
"""Containers that run without the GPU nodes they were to have: NVIDIA's runtime was not used, or did not act."""

from __future__ import annotations

from gpuiso.doctor.checks.denial import Cause, Denial
from gpuiso.doctor.checks.engine_setup import ENVVAR_REFUSED, NO_RUNTIME
from gpuiso.doctor.checks.scope_devices import config_of
from gpuiso.doctor.finding import Evidence, Fix
from gpuiso.doctor.toolkit import inspected, toolkit_config
from gpuiso.gpu.visibility.nvidia import nvidia_visible
from gpuiso.host.process import cgroups
from gpuiso.kernel.capability import CAP_SYS_ADMIN

__all__ = ["not_by_variable", "runtime_not_used"]

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_NONE = frozenset({"", "none", "void"})


def _requested(denial: Denial) -> str | None:
    """What the container's environment asks of NVIDIA's runtime, where none of the nodes came."""
    if denial.gate.gate != "path" or denial.container is None:
        return None
    value = denial.subject.env.get(VARIABLE, "")
    if value.strip().lower() in _NONE or "/dev/nvidiactl" not in denial.paths:
        return None
    return value


def not_by_variable(denial: Denial) -> Cause | None:
    """The toolkit is configured to ignore the variable in containers without privileges."""
    value = _requested(denial)
    if value is None or denial.subject.status.cap_eff >> CAP_SYS_ADMIN & 1:
        return None
    config = toolkit_config(denial.subject.host)
    if config is None or config.accept_envvar:
        return None
    return Cause(
        ENVVAR_REFUSED,
        f"{denial.who} asks for GPUs by {VARIABLE}={value}, and the toolkit is configured to take that from privileged"
        f" containers only: {denial.nodes} were not put into its /dev.",
        (
            denial.subject.environ_evidence(VARIABLE),
            Evidence(config.path, "accept-nvidia-visible-devices-envvar-when-unprivileged = false"),
            Evidence(f"/proc/{denial.subject.pid}/status", f"CapEff {denial.subject.status.cap_eff:016x}"),
            *denial.evidence,
        ),
        (
            Fix(
                "Request the GPU from the engine instead: by CDI, or in Kubernetes as a resource (nvidia.com/gpu: 1)",
                f"docker run --device nvidia.com/gpu={_uuid(denial)} IMAGE",
            ),
        ),
    )


def runtime_not_used(denial: Denial) -> Cause | None:
    """The variable that NVIDIA's runtime reads is set, but the container was started by plain runc."""
    value = _requested(denial)
    container = denial.container
    if value is None or container is None:
        return None
    where = " ".join(cgroups(denial.subject.host, denial.subject.pid).values())
    if "kubepods" in where:
        return _in_kubernetes(denial, value)
    view = inspected(denial.subject.host, container.id)
    if view is None:
        return None
    settings = view.get("HostConfig") or {}
    runtime = str(settings.get("Runtime") or "")
    if runtime.startswith("nvidia") or settings.get("DeviceRequests"):
        return None
    return Cause(
        NO_RUNTIME,
        f"{denial.who} has {VARIABLE}={value}, which NVIDIA's runtime reads, but its container was started with the"
        f" runtime {runtime or 'runc'} and without a request for GPUs (--gpus, --device): nothing put {denial.nodes}"
        " into its /dev.",
        (
            denial.subject.environ_evidence(VARIABLE),
            Evidence(f"docker inspect {container.short}", f"HostConfig.Runtime is {runtime or 'not set'}"),
            Evidence(f"docker inspect {container.short}", "HostConfig.DeviceRequests is empty"),
            *denial.evidence,
        ),
        (
            Fix(
                "Create the container again with a request for its GPUs: by CDI, or with --gpus all",
                f"docker run --device nvidia.com/gpu={_uuid(denial)} IMAGE",
            ),
        ),
        "The container was started without NVIDIA's runtime",
    )


def _in_kubernetes(denial: Denial, value: str) -> Cause | None:
    """The device plugin names GPUs by the variable; the pod's handler must be NVIDIA's runtime to act on it."""
    if nvidia_visible(denial.subject.machine.nvidia, denial.subject.env).mode != "list":
        return None  # from the image: nobody requested a GPU
    known = config_of(denial.subject)
    if known is None:
        return None
    path, config = known
    if "nvidia" in str(config.get("hooks") or ""):
        return None
    return Cause(
        NO_RUNTIME,
        f"The device plugin gave {denial.who} {VARIABLE}={value}, but its pod ran with a runtime that does not read it:"
        f" no NVIDIA hook, and {denial.nodes} are not in its /dev.",
        (
            denial.subject.environ_evidence(VARIABLE),
            Evidence(path, "hooks name no NVIDIA program"),
            *denial.evidence,
        ),
        (
            Fix(
                "Set runtimeClassName: nvidia in the pod's specification, or make nvidia containerd's default runtime",
                "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default"
                " && sudo systemctl restart containerd",
            ),
        ),
        "The pod ran without NVIDIA's runtime",
    )


def _uuid(denial: Denial) -> str:
    return next((gpu.uuid for gpu in denial.subject.machine.nvidia if gpu.uuid is not None), "all")
