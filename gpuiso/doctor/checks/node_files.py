# SPDX-License-Identifier: Apache-2.0
"""The nodes of NVIDIA's driver in the host's /dev: there, with the registered numbers, and open to users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.majors import nvidia_major
from gpuiso.gpu.model import DeviceNode
from gpuiso.host.mounts import covering_mount, mounts
from gpuiso.host.protocol import Host, Node

__all__ = [
    "DEV_MISSING_NS",
    "DEV_MODE",
    "DEV_NUMBERS",
    "LAZY_NODES",
    "NVIDIA_MODPROBE",
    "UVM_MAJOR_MISMATCH",
    "UVM_MISSING",
    "setuid_modprobe",
    "told_closed",
]

NVIDIA_MODPROBE = "/usr/bin/nvidia-modprobe"
PARAMS = "/proc/driver/nvidia/params"
CUDA_GUIDE = "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/"

UVM_MISSING = Rule(
    "GPU-UVM-MISSING",
    "error",
    "CUDA cannot start: nvidia-uvm is missing",
    "the nvidia-uvm module is not loaded, or /dev/nvidia-uvm does not exist",
    ("https://github.com/apptainer/singularity/issues/1441", CUDA_GUIDE),
)
UVM_MAJOR_MISMATCH = Rule(
    "GPU-UVM-MAJOR-MISMATCH",
    "error",
    "A node of nvidia-uvm carries the wrong numbers",
    "/dev/nvidia-uvm has another major than the one nvidia-uvm registered in /proc/devices",
    ("https://github.com/negativo17/nvidia-driver/issues/29", "https://github.com/lf-edge/eve/pull/6387"),
)
DEV_NUMBERS = Rule(
    "GPU-DEV-NUMBERS",
    "error",
    "A GPU node carries the wrong numbers",
    "/dev/nvidiaN or /dev/nvidiactl is no character device with the numbers that the driver registered",
    ("https://github.com/lf-edge/eve/pull/6387",),
)
LAZY_NODES = Rule(
    "GPU-LAZY-NODES",
    "error",
    "The driver is loaded, but its nodes were never made",
    "the driver is loaded and /dev/nvidia* is absent: nodes are made by the first program that may make them",
    ("https://github.com/apptainer/singularity/issues/1441", CUDA_GUIDE),
)
DEV_MISSING_NS = Rule(
    "GPU-DEV-MISSING-NS",
    "error",
    "The process's own /dev lacks GPU nodes that the host has",
    "a GPU node exists on the host and not in the private /dev of a sandbox, container or unit",
    ("https://github.com/openai/codex/issues/19676",),
)
DEV_MODE = Rule(
    "GPU-DEV-MODE",
    "error",
    "The mode of a GPU node keeps users out",
    "owner, group and mode of a GPU node do not let a process, or any ordinary user, open it",
    (
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/210",
        "https://github.com/NVIDIA/nvidia-docker/issues/1608",
    ),
)


def setuid_modprobe(node: Node | None) -> bool:
    """Whether this is an nvidia-modprobe by which any user's first CUDA program makes missing nodes."""
    return node is not None and node.type == "f" and node.uid == 0 and bool(node.mode & 0o4000)


def _modprobe(host: Host) -> Node | None:
    try:
        return host.stat(NVIDIA_MODPROBE)
    except Unknown:
        return None  # it only decides how bad a missing node is, and how to make one


def _in_container(host: Host) -> bool:
    """Whether the /dev looked at was put together for a container: the kernel's own is a devtmpfs."""
    try:
        mount = covering_mount(mounts(host, "self"), "/dev")
    except (NotFound, Unknown):
        return False
    return mount is not None and mount.point == "/dev" and mount.fstype != "devtmpfs"


def _numbers(node: DeviceNode) -> str:
    return f"c {node.major}:{node.minor}"


def actual_numbers(node: Node) -> str:
    """What stands at a path, in words: ``c 238:0``, ``a regular file``."""
    words = {"d": "a directory", "f": "a regular file", "p": "a FIFO", "s": "a socket", "l": "a link"}
    return words.get(node.type, f"{node.type} {node.major}:{node.minor}")


def names(nodes: Sequence[DeviceNode]) -> str:
    return ", ".join(node.path for node in nodes)


def _registered(machine: Machine) -> Evidence:
    found = ", ".join(f"{major} {name}" for name, major in sorted(machine.majors.items()) if name.startswith("nvidia"))
    return Evidence("/proc/devices", found)


def _make(machine: Machine, nodes: Sequence[DeviceNode]) -> Fix:
    """The command that makes nodes, as nvidia-modprobe does where it is installed."""
    if _modprobe(machine.host) is not None:
        options = [f"-c={node.minor}" for node in nodes if node.role == "gpu"] or ["-c=0"]
        if any(node.role in ("uvm", "uvm-tools") for node in nodes):
            options.append("-u")
        return Fix("Make the nodes, as root", f"sudo {NVIDIA_MODPROBE} {' '.join(options)}")
    steps = []
    for node in nodes:
        if node.major is None:
            # The major is known once the module is loaded.
            major = '$(grep -w nvidia-uvm /proc/devices | cut -d" " -f1)'
            steps += [
                "modprobe nvidia-uvm",
                f"mknod -m 0666 {node.path} c {major} {1 if node.role == 'uvm-tools' else 0}",
            ]
        else:
            steps.append(f"mknod -m 0666 {node.path} c {node.major} {node.minor}")
    text = "Make the nodes by hand: nvidia-modprobe, which makes them on demand, was not found"
    return Fix(text, f"sudo sh -c '{' && '.join(steps)}'")


_LASTING = Fix(
    "Have it done at every boot, before containers start: NVIDIA's persistence daemon opens every GPU",
    "sudo systemctl enable --now nvidia-persistenced",
)


def _on_demand(machine: Machine, cause: str) -> tuple[Severity, str, tuple[Evidence, ...]]:
    """How bad an absent node is: a setuid nvidia-modprobe makes it at the first use by a program of the host."""
    node = _modprobe(machine.host)
    if node is None or not setuid_modprobe(node):
        return "error", cause, ()
    cause += " nvidia-modprobe makes what is missing at the first use on the host, but not from a container or sandbox."
    return "info", cause, (Evidence(NVIDIA_MODPROBE, f"mode {node.mode:04o}, owner root: setuid"),)


@machine_check(LAZY_NODES, UVM_MISSING, UVM_MAJOR_MISMATCH, DEV_NUMBERS, DEV_MISSING_NS)
def host_nodes(machine: Machine) -> Iterator[Finding]:
    """Compares /dev with what the driver registered; one cause for all nodes is one finding."""
    if nvidia_major(machine.majors) is None or not machine.nvidia:
        return
    required = [node for node in machine.nvidia_nodes if node.required]
    absent = [node for node in required if node.actual is None]
    others = [node for node in required if node.role != "uvm"]
    never_made = [node for node in absent if node in others]
    if never_made and _in_container(machine.host):
        if never_made == others:
            yield _given_none(machine, absent)
            return
        never_made = [node for node in never_made if node.role != "gpu"]  # a container gets the GPUs it was given
    if never_made:
        yield _lazy(machine, absent)
    for node in required:
        if node.role == "uvm":
            yield from _uvm(machine, node, already_told=bool(never_made))
        elif node.actual is not None and not node.right:
            yield _wrong_numbers(machine, DEV_NUMBERS, [node])


def _given_none(machine: Machine, absent: Sequence[DeviceNode]) -> Finding:
    version = machine.inventory.driver_version
    return DEV_MISSING_NS.finding(
        "The kernel's NVIDIA driver drives"
        f" {len(machine.nvidia)} GPUs, but this is a container's /dev, and no GPU node was put into it.",
        severity="warning",
        title="This container was given no GPU",
        evidence=[
            *([Evidence("/proc/driver/nvidia/version", f"driver {version}")] if version is not None else []),
            Evidence("/proc/self/mountinfo", "/dev is no devtmpfs"),
            *(Evidence(node.path, "does not exist") for node in absent),
        ],
        fix=[
            Fix(
                "Start the container again with the GPUs it is to have, for Docker and podman with"
                " --device nvidia.com/gpu=UUID (CDI)"
            )
        ],
    )


def _lazy(machine: Machine, absent: Sequence[DeviceNode]) -> Finding:
    version = machine.inventory.driver_version
    driver = "NVIDIA's driver" if version is None else f"NVIDIA's driver {version}"
    cause = f"{driver} is loaded, but no program has made {names(absent)} yet."
    severity, cause, more = _on_demand(machine, cause)
    return LAZY_NODES.finding(
        cause,
        severity=severity,
        evidence=[_registered(machine), *(Evidence(node.path, "does not exist") for node in absent), *more],
        fix=[_make(machine, absent), _LASTING],
    )


def _uvm(machine: Machine, node: DeviceNode, *, already_told: bool) -> Iterator[Finding]:
    tools = [other for other in machine.nvidia_nodes if other.role == "uvm-tools"]
    if node.actual is None or node.major is None:
        # A host that gives its GPUs to virtual machines as vGPUs runs no CUDA itself.
        if not already_told and "nvidia_vgpu_vfio" not in machine.modules:
            yield _uvm_missing(machine, node)
        return
    wrong = [each for each in (node, *tools) if each.actual is not None and not each.right]
    if wrong:
        yield _wrong_numbers(machine, UVM_MAJOR_MISMATCH, wrong)


def _uvm_missing(machine: Machine, node: DeviceNode) -> Finding:
    if node.major is None:
        cause = "The nvidia driver is loaded, but its module nvidia-uvm is not."
    else:
        cause = f"The module nvidia-uvm is loaded, but {node.path} does not exist."
    cause += " nvidia-smi works without it; cuInit fails with 999."
    severity, cause, more = _on_demand(machine, cause)
    actual = "does not exist" if node.actual is None else f"{actual_numbers(node.actual)}, left over"
    return UVM_MISSING.finding(
        cause,
        severity=severity,
        title="nvidia-uvm is not there yet" if severity == "info" else None,
        evidence=[_registered(machine), Evidence(node.path, actual), *more],
        fix=[_make(machine, [node]), _LASTING],
    )


def _wrong_numbers(machine: Machine, rule: Rule, wrong: Sequence[DeviceNode]) -> Finding:
    first = wrong[0]
    actual = "" if first.actual is None else actual_numbers(first.actual)
    paths = " ".join(node.path for node in wrong)
    make = " && ".join(f"mknod -m 0666 {node.path} c {node.major} {node.minor}" for node in wrong)
    return rule.finding(
        f"{first.path} is {actual}, but the driver registered {_numbers(first)}: opening the node reaches no driver,"
        " or another one.",
        severity="error" if any(node.required for node in wrong) else "warning",
        evidence=[
            _registered(machine),
            *(Evidence(node.path, actual_numbers(node.actual)) for node in wrong if node.actual is not None),
        ],
        fix=[
            Fix("Make the node again with the registered numbers", f"sudo sh -c 'rm -f {paths} && {make}'"),
            Fix(
                "Remove what makes it with fixed numbers (a packaged udev rule, tmpfiles.d, a start script):"
                " the major changes with the kernel",
                "grep -rn nvidia /etc/udev/rules.d /usr/lib/udev/rules.d /etc/tmpfiles.d /usr/lib/tmpfiles.d",
            ),
        ],
    )


def _parameters(machine: Machine) -> dict[str, str]:
    lines = (line.partition(":") for line in (machine.host.text(PARAMS) or "").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _kept_closed(machine: Machine) -> list[DeviceNode]:
    """Nodes that ordinary users cannot open although the driver was told to make them so."""
    nodes = [node for node in machine.nvidia_nodes if node.required and node.actual is not None and node.right]
    closed = [node for node in nodes if node.actual is not None and node.actual.mode & 0o006 != 0o006]
    if not closed:
        return []
    parameters = _parameters(machine)
    if parameters.get("DeviceFileMode") != "438" or parameters.get("ModifyDeviceFiles") == "0":
        return []  # the administrator chose the mode
    return closed


def told_closed(machine: Machine) -> frozenset[str]:
    """The nodes that :func:`closed_nodes` tells of, so that no process is blamed for them again."""
    try:
        return frozenset(node.path for node in _kept_closed(machine))
    except Unknown:
        return frozenset()


@machine_check(DEV_MODE)
def closed_nodes(machine: Machine) -> Iterator[Finding]:
    """Nodes that ordinary users cannot open although the driver was told to make them so."""
    closed = _kept_closed(machine)
    if not closed:
        return
    nodes = [node for node in machine.nvidia_nodes if node.required]
    gpus = [node for node in nodes if node.role == "gpu"]
    by_group = any(node.actual is not None and node.actual.gid and node.actual.mode & 0o060 == 0o060 for node in closed)
    everything = any(node.role != "gpu" for node in closed) or all(node in closed for node in gpus)
    yield DEV_MODE.finding(
        f"Ordinary users cannot open {names(closed)}, although the driver was told to make its nodes with mode 0666."
        " Something else changed them since.",
        severity="error" if everything and not by_group else "warning",
        evidence=[
            *(
                Evidence(node.path, f"mode {node.actual.mode:04o} uid {node.actual.uid} gid {node.actual.gid}")
                for node in closed
                if node.actual is not None
            ),
            Evidence(PARAMS, "DeviceFileMode: 438 (0666)"),
        ],
        fix=[
            Fix("Open the nodes again", f"sudo chmod 0666 {' '.join(node.path for node in closed)}"),
            Fix(
                "If they are meant to be closed, tell the driver (NVreg_DeviceFileMode, NVreg_DeviceFileGID), which"
                " would otherwise open them again"
            ),
        ],
    )
