# SPDX-License-Identifier: Apache-2.0
"""Containers that did not start, by what Docker remembers of the failure (State.Error)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from gpuiso.doctor.checks.engine_setup import (
    ENVVAR_REFUSED,
    NESTED_EPERM,
    NO_RUNTIME,
    OLD_CGV2,
    ROOTLESS_EPERM,
    in_lxc,
    no_cgroups_fix,
)
from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.doctor.toolkit import toolkit_config
from gpuiso.errors import Unknown
from gpuiso.gpu.requirements import satisfied

__all__: list[str] = []

REQUIRE_CUDA = Rule(
    "GPU-REQUIRE-CUDA",
    "error",
    "The image needs a newer driver than this host has",
    "NVIDIA_REQUIRE_CUDA of the image is not fulfilled by the driver: the NVIDIA runtime refuses to start it",
    (
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/152",
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
    ),
)
GPUS_SYNTAX = Rule(
    "GPU-DOCKER-GPUS-SYNTAX",
    "warning",
    "docker run --gpus says something else than was meant",
    "--gpus device=0,1 needs quotes of its own, or the comma ends the list; --gpus 0 asks for no GPU at all",
    (
        "https://docs.docker.com/engine/containers/resource_constraints/#gpu",
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
    ),
)

_HOOK = "/usr/bin/nvidia-container-runtime-hook"
_DRIVER = re.compile(r"could not select device driver \"[^\"]*\" with capabilities: \[\[[^\]]*gpu[^\]]*\]\]")
_UNKNOWN_RUNTIME = re.compile(r"unknown or invalid runtime name: nvidia|[Uu]nknown runtime specified nvidia")
_NO_DEVICES_CGROUP = re.compile(r"cgroup subsystem devices not found")
_BPF_EPERM = re.compile(r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed: operation not permitted")
_V1_EPERM = re.compile(r"devices\.allow: operation not permitted")
_REFUSED = re.compile(r"insufficient privileges to read device list from NVIDIA_VISIBLE_DEVICES envvar")
_UNSATISFIED = re.compile(r"unsatisfied condition: ([^\s,\"]+)")


@dataclass(frozen=True, slots=True)
class Failed:
    """A container that Docker could not start; ``message`` is the part of State.Error that tells."""

    machine: Machine
    id: str
    name: str
    inspect: Mapping[str, Any]
    message: str

    def finding(self, rule: Rule, cause: str, fix: list[Fix], *more: Evidence, title: str | None = None) -> Finding:
        return rule.finding(
            cause,
            evidence=[Evidence(f"docker inspect {self.name}: State.Error", self.message), *more],
            fix=fix,
            target=Target(container=self.id),
            severity="error",
            title=title,
        )

    def again(self, text: str) -> Fix:
        return Fix(text, f"docker start {quote(self.name)}")


def _failed(machine: Machine) -> Iterator[tuple[str, str, Mapping[str, Any], str]]:
    for identifier, inspect in sorted(machine.host.docker_containers().items()):
        state = inspect.get("State") or {}
        error = " ".join(str(state.get("Error") or "").split())
        if error and not state.get("Running"):
            yield identifier, str(inspect.get("Name") or identifier[:12]).lstrip("/"), inspect, error


def _no_driver(failed: Failed) -> Finding:
    installed = _there(failed.machine, _HOOK)
    if installed:
        cause = "NVIDIA's container toolkit is installed now, but Docker looks for it at its start only."
        fix = [Fix("Restart Docker (it stops containers without live-restore)", "sudo systemctl restart docker")]
    else:
        cause = "Docker finds no NVIDIA container toolkit on this host."
        fix = [
            Fix(
                "Install NVIDIA's container toolkit (its package repository must be set up), then restart Docker",
                "sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
                " && sudo systemctl restart docker",
            ),
            Fix(
                "Or, with Docker 25 or later and a CDI specification, name the GPU as a device",
                f"docker run --device nvidia.com/gpu={_uuid(failed.machine)} IMAGE",
            ),
        ]
    seen = [] if installed is None else [Evidence(_HOOK, "exists" if installed else "does not exist")]
    return failed.finding(
        NO_RUNTIME, f"Container {failed.name} asks for GPUs (--gpus) and cannot start: {cause}", fix, *seen
    )


def _there(machine: Machine, path: str) -> bool | None:
    try:
        return machine.host.stat(path) is not None
    except Unknown:
        return None


def _uuid(machine: Machine) -> str:
    return next((gpu.uuid for gpu in machine.nvidia if gpu.uuid is not None), "UUID")


def _no_runtime(failed: Failed) -> Finding:
    return failed.finding(
        NO_RUNTIME,
        f"Container {failed.name} asks for the runtime nvidia, which Docker's configuration does not define.",
        [
            Fix(
                "Define it and restart Docker",
                "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
            )
        ],
    )


def _old(failed: Failed) -> Finding:
    return failed.finding(
        OLD_CGV2,
        f"Container {failed.name} cannot start: this libnvidia-container looks for the devices controller of cgroup v1,"
        " and this host has cgroup v2 alone. Versions before 1.8.0 do not know cgroup v2.",
        [
            Fix(
                "Install a current toolkit",
                "sudo apt-get install -y --only-upgrade nvidia-container-toolkit libnvidia-container-tools"
                " libnvidia-container1",
            )
        ],
    )


def _not_permitted(failed: Failed) -> Finding:
    if in_lxc(failed.machine.host):
        return _nested(failed)
    config = _config(failed.machine)
    return failed.finding(
        ROOTLESS_EPERM,
        f"Container {failed.name} of a rootless engine cannot start: NVIDIA's hook tries to change its device filter,"
        " which only root may. A rootless engine has no device filter to change.",
        no_cgroups_fix(failed.machine.host),
        *config,
    )


def _nested(failed: Failed) -> Finding:
    return failed.finding(
        NESTED_EPERM,
        f"Container {failed.name} cannot start: this host is itself an unprivileged container, in which nobody may"
        " write device rules, and NVIDIA's hook tries to.",
        [
            *no_cgroups_fix(failed.machine.host),
            Fix("The outer container must have the GPU nodes, and its own filter must allow them"),
        ],
        Evidence("/run/systemd/container", "lxc"),
        *_config(failed.machine),
    )


def _config(machine: Machine) -> tuple[Evidence, ...]:
    try:
        config = toolkit_config(machine.host)
    except Unknown:
        return ()
    return () if config is None else (Evidence(config.path, f"no-cgroups = {str(config.no_cgroups).lower()}"),)


def _refused(failed: Failed) -> Finding:
    return failed.finding(
        ENVVAR_REFUSED,
        f"Container {failed.name} cannot start: its environment (mostly that of its image) selects GPUs by"
        " NVIDIA_VISIBLE_DEVICES, and the toolkit is configured to take that from privileged containers only.",
        [
            Fix(
                "If it is to have no GPU, empty the variable; else request the GPU from the engine",
                "docker run -e NVIDIA_VISIBLE_DEVICES=void IMAGE",
            ),
            Fix("With a GPU, by CDI", f"docker run --device nvidia.com/gpu={_uuid(failed.machine)} IMAGE"),
        ],
        *_accepting(failed.machine),
    )


def _accepting(machine: Machine) -> tuple[Evidence, ...]:
    try:
        config = toolkit_config(machine.host)
    except Unknown:
        return ()
    if config is None or config.accept_envvar:
        return ()
    return (Evidence(config.path, "accept-nvidia-visible-devices-envvar-when-unprivileged = false"),)


def _unsatisfied(failed: Failed) -> Finding | None:
    match = _UNSATISFIED.search(failed.message)
    wanted = "" if match is None else match[1]
    inventory = failed.machine.inventory
    known = bool(inventory.cuda_version and inventory.driver_version and wanted)
    if known and satisfied(wanted, cuda=inventory.cuda_version or "", driver=inventory.driver_version or ""):
        return None  # the driver was updated since
    have = [f"driver {inventory.driver_version}"] if inventory.driver_version else []
    have += [f"up to CUDA {inventory.cuda_version}"] if inventory.cuda_version else []
    return failed.finding(
        REQUIRE_CUDA,
        f"Container {failed.name} cannot start: its image requires {wanted}, which this host's"
        f" {', '.join(have) or 'driver'} does not fulfil.",
        [
            Fix("Update the driver of the host, or use an older tag of the image"),
            Fix(
                "To try it nevertheless (CUDA may then fail with 35 or 803)",
                "docker run --gpus all -e NVIDIA_DISABLE_REQUIRE=1 IMAGE",
            ),
        ],
        *(Evidence("/proc/driver/nvidia/version", text) for text in have[:1]),
    )


_TABLE: tuple[tuple[re.Pattern[str], Callable[[Failed], Finding | None]], ...] = (
    (_DRIVER, _no_driver),
    (_UNKNOWN_RUNTIME, _no_runtime),
    (_NO_DEVICES_CGROUP, _old),
    (_BPF_EPERM, _not_permitted),
    (_V1_EPERM, _nested),
    (_REFUSED, _refused),
    (_UNSATISFIED, _unsatisfied),
)


@machine_check(NO_RUNTIME, OLD_CGV2, ROOTLESS_EPERM, NESTED_EPERM, ENVVAR_REFUSED, REQUIRE_CUDA)
def failed_starts(machine: Machine) -> Iterator[Finding]:
    """What NVIDIA's hook or Docker said when a container did not start."""
    if not machine.nvidia:
        return
    for identifier, name, inspect, error in _failed(machine):
        if _both(inspect) is not None:
            continue  # its request is wrong in itself
        for pattern, tell in _TABLE:
            match = pattern.search(error)
            if match is not None:
                found = tell(Failed(machine, identifier, name, inspect, match[0]))
                if found is not None:
                    yield found
                break


def _gpu_requests(inspect: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for request in (inspect.get("HostConfig") or {}).get("DeviceRequests") or ():
        if request.get("Driver") in ("", "nvidia", None) and any(
            "gpu" in group for group in request.get("Capabilities") or ()
        ):
            yield request


def _both(inspect: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A request with a count beside devices, which Docker refuses: what is left of device=0,1 without quotes."""
    for request in _gpu_requests(inspect):
        if request.get("Count") and request.get("DeviceIDs"):
            return request
    return None


@machine_check(GPUS_SYNTAX)
def gpus_option(machine: Machine) -> Iterator[Finding]:
    """Requests that say something else than their author meant."""
    if not machine.nvidia:
        return
    for identifier, inspect in sorted(machine.host.docker_containers().items()):
        name = str(inspect.get("Name") or identifier[:12]).lstrip("/")
        for request in _gpu_requests(inspect):
            count, devices = request.get("Count"), request.get("DeviceIDs")
            shown = Evidence(
                f"docker inspect {name}: HostConfig.DeviceRequests", f"Count={count} DeviceIDs={devices or 'none'}"
            )
            if count and devices:
                meant = ",".join([*map(str, devices), str(count)])
                yield GPUS_SYNTAX.finding(
                    f"Container {name} asks for a count of {count} GPUs and for device {', '.join(map(str, devices))}"
                    f" at once, which Docker refuses. That is what --gpus device={meant} says without more quotes:"
                    " the comma ends the list of devices.",
                    severity="error",
                    evidence=[shown],
                    fix=[Fix("Quote the list for Docker as well as for the shell", _quoted(meant))],
                    target=Target(container=identifier),
                )
            elif count == 0 and not devices:
                yield GPUS_SYNTAX.finding(
                    f"Container {name} was created with --gpus 0: that is a count, of no GPU, not the GPU of index 0.",
                    evidence=[shown],
                    fix=[Fix("Name the GPU as a device", f"docker run --gpus device={_uuid(machine)} IMAGE")],
                    target=Target(container=identifier),
                )


def _quoted(devices: str) -> str:
    inner = f'"device={devices}"'
    return f"docker run --gpus '{inner}' IMAGE"
