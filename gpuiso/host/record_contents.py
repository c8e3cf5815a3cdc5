# SPDX-License-Identifier: Apache-2.0
"""What a record holds: the questions that are asked of a host for one.

What the host does not tell is left out; what it says is absent is recorded as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gpuiso.errors import NotFound, Unknown
from gpuiso.host import process
from gpuiso.host.cgroup_mounts import cgroup_mount
from gpuiso.host.protocol import Host
from gpuiso.host.recorder import Recorder

__all__ = ["DEVICE_NAME", "GPU_VARIABLE", "ask_machine", "ask_process", "sees_host", "select_processes"]

FILES = (
    "/proc/cgroups",
    "/proc/cmdline",
    "/proc/devices",
    "/proc/filesystems",
    "/proc/modules",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/net/core/bpf_jit_harden",
    "/proc/uptime",
    "/proc/version",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/fs/cgroup/cgroup.subtree_control",
    "/sys/fs/cgroup/unified/cgroup.controllers",
    "/sys/fs/selinux/enforce",
    "/sys/kernel/security/lockdown",
    "/sys/kernel/security/lsm",
    "/etc/containerd/config.toml",
    "/etc/containers/containers.conf",
    "/etc/crio/crio.conf",
    "/etc/docker/daemon.json",
    "/etc/ld.so.cache",
    "/etc/nvidia-container-runtime/config.toml",
    "/etc/os-release",
    "/etc/slurm/cgroup.conf",
    "/etc/slurm/gres.conf",
    "/run/systemd/container",
    "/var/lib/kubelet/config.yaml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
)
#: Directories whose files are read where their name matches.
DIRECTORIES = (
    ("/etc/cdi", r".*\.(json|yaml)"),
    ("/var/run/cdi", r".*\.(json|yaml)"),
    ("/etc/containerd/conf.d", r".*\.toml"),
    ("/etc/crio/crio.conf.d", r".*\.conf"),
    ("/etc/gpuiso/policy.d", r"(?!)"),  # whether there are such files; they name people
    ("/etc/modprobe.d", r".*(nvidia|nouveau|vfio|amdgpu|blacklist).*\.conf"),
    ("/etc/pve/lxc", r"\d+\.conf"),
    ("/etc/udev/rules.d", r".*nvidia.*\.rules"),
    ("/proc/driver/nvidia-caps", r".*"),
)
MODULES = ("nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nouveau", "amdgpu", "i915", "xe", "vfio_pci")
MODULE_FILES = ("initstate", "srcversion", "version")
PCI_FILES = (
    "device",
    "enable",
    "local_cpulist",
    "mem_info_vram_total",
    "mem_info_vram_used",
    "numa_node",
    "product_name",
    "subsystem_device",
    "subsystem_vendor",
    "unique_id",
    "config",
)
UNITS = (
    "containerd.service",
    "docker.service",
    "kubelet.service",
    "nvidia-cdi-refresh.service",
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
)
SOCKETS = (
    "/run/docker.sock",
    "/run/nvidia-persistenced/socket",
    "/run/nvidia-fabricmanager/socket",
    "/tmp/nvidia-mps",  # noqa: S108
)
PROGRAMS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-container-cli",
    "/usr/bin/nvidia-container-runtime",
    "/usr/bin/nvidia-ctk",
    "/usr/bin/nvidia-cuda-mps-control",
    "/usr/bin/nvidia-modprobe",
    "/usr/bin/nvidia-persistenced",
    "/usr/bin/nvidia-smi",
)
LIBRARY_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/run/opengl-driver/lib",
    "/usr/local/cuda/compat",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")

DEVICE_NAME = re.compile(
    r"nvidia.*|dri|kfd|dxg|nvhost.*|nvmap|accel|full|fuse|kvm|null|random|shm|tty|urandom|vfio|zero"
)
_BELOW_DEV = ("nvidia-caps", "nvidia-caps-imex-channels", "dri", "accel")
_GPU_CLASSES = (0x03, 0x12)  # display controllers, processing accelerators
_BRIDGE_OTHER = 0x0680  # NVSwitch
_LIBRARY = re.compile(r"lib(cuda|cudadebugger|nvidia-|nvcuvid|nvoptix|GLX_nvidia|EGL_nvidia|dxcore)[^/]*\.so[^/]*")
_CACHED_LIBRARY = re.compile(rb"/[^\0]*/lib(?:cuda|nvidia-ml)\.so\.1(?=\0)")
GPU_VARIABLE = re.compile(
    rb"(?:^|\0)(?:CUDA_VISIBLE|CUDA_DEVICE_ORDER|CUDA_MPS|NVIDIA_VISIBLE|NVIDIA_DRIVER_CAP|ROCR_VIS|HIP_VIS|GPU_DEVICE_ORD|ZE_AFF|ONEAPI_DEV)"
)
_DAEMONS = frozenset({
    "containerd", "crio", "dockerd", "kubelet", "nv-fabricmanage", "nv-hostengine", "nvidia-cuda-mps",
    "nvidia-persiste", "slurmd",
})  # fmt: skip
_KTHREADD = 2
_GPU_NODES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/dxg")
_PROCESS_FILES = (
    "attr/current", "cgroup", "cmdline", "comm", "environ", "gid_map", "maps", "mountinfo", "stat", "status",
    "uid_map", "wchan",
)  # fmt: skip
_PROCESS_LINKS = ("cwd", "exe", "root", "ns/cgroup", "ns/mnt", "ns/net", "ns/pid", "ns/user")


def _try(question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, None where the host does not tell or the process has ended."""
    try:
        return question(*arguments)
    except (Unknown, NotFound):
        return None


def ask_machine(recorder: Recorder) -> None:
    """The host itself: driver, buses, nodes, libraries, configuration, services, logs."""
    for path in FILES:
        _try(recorder.read, path)
    for path in (*SOCKETS, *PROGRAMS):
        _try(recorder.stat, path)
    for directory, pattern in DIRECTORIES:
        for name in _try(recorder.host.listdir, directory) or _note_absence(recorder, directory):
            if re.fullmatch(pattern, name):
                _try(recorder.read, f"{directory}/{name}")
    _walk(recorder, "/proc/driver/nvidia")
    for module in MODULES:
        if _try(recorder.lstat, f"/sys/module/{module}") is not None:
            for name in MODULE_FILES:
                _try(recorder.read, f"/sys/module/{module}/{name}")
    _ask_pci(recorder)
    for name in _try(recorder.host.listdir, "/sys/class/kfd/kfd/topology/nodes") or ():
        _try(recorder.read, f"/sys/class/kfd/kfd/topology/nodes/{name}/properties")
    ask_devices(recorder, "")
    ask_libraries(recorder, "")
    for link in ("/proc/1/ns/mnt", "/proc/self/ns/mnt"):
        _try(recorder.readlink, link)
    _ask_cgroups(recorder, _try(recorder.text, "/proc/self/cgroup") or "")
    for question in (recorder.nvml, recorder.kernel_log, recorder.docker_info, recorder.docker_containers):
        _try(question)
    for unit in UNITS:
        _try(recorder.unit, unit)


def _note_absence(recorder: Recorder, path: str) -> tuple[str, ...]:
    _try(recorder.lstat, path)
    return ()


def _walk(recorder: Recorder, directory: str, depth: int = 8) -> None:
    """All files below a directory of a driver in /proc."""
    for name in _try(recorder.listdir, directory) or ():
        path = f"{directory}/{name}"
        node = _try(recorder.host.lstat, path)
        if node is None:
            continue
        if node.type == "d" and depth:
            _try(recorder.lstat, path)
            _walk(recorder, path, depth - 1)
        elif node.type == "f":
            _try(recorder.read, path)


def _ask_pci(recorder: Recorder) -> None:
    base = "/sys/bus/pci/devices"
    for address in _try(recorder.host.listdir, base) or ():
        device = f"{base}/{address}"
        _try(recorder.read, f"{device}/vendor")
        number = (_try(recorder.text, f"{device}/class") or "").strip()
        kind = int(number, 16) if re.fullmatch("0x[0-9a-f]{6}", number) else 0
        if kind >> 16 not in _GPU_CLASSES and kind >> 8 != _BRIDGE_OTHER:
            continue
        _try(recorder.readlink, f"{device}/driver")
        for name in PCI_FILES:
            _try(recorder.read, f"{device}/{name}")
        for name in _try(recorder.listdir, f"{device}/drm") or ():
            _try(recorder.read, f"{device}/drm/{name}/dev")


def ask_devices(recorder: Recorder, root: str) -> None:
    """The device nodes in one view: GPU nodes, a few ordinary ones, and udev's links to the former by number."""
    for directory in ("/dev", *(f"/dev/{name}" for name in _BELOW_DEV)):
        for name in _try(recorder.host.listdir, root + directory) or ():
            path = f"{root}{directory}/{name}"
            if directory == "/dev" and DEVICE_NAME.fullmatch(name) is None:
                continue
            node = _try(recorder.stat, path)
            if node is not None and node.type == "c" and path.startswith(f"{root}/dev/nvidia"):
                _try(recorder.stat, f"{root}/dev/char/{node.major}:{node.minor}")


def ask_libraries(recorder: Recorder, root: str) -> None:
    """The driver's libraries in one view: those in the linker's cache and in the usual directories."""
    cache = _try(recorder.read, f"{root}/etc/ld.so.cache") or b""
    for found in dict.fromkeys(_CACHED_LIBRARY.findall(cache)):
        _try(recorder.stat, root + found.decode("utf-8", "surrogateescape"))
    for directory in LIBRARY_DIRECTORIES:
        for soname in SONAMES:
            _try(recorder.stat, f"{root}{directory}/{soname}")
        for name in _try(recorder.host.listdir, root + directory) or ():
            if _LIBRARY.fullmatch(name):
                _try(recorder.stat, f"{root}{directory}/{name}")


def select_processes(host: Host, targets: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Processes that hold or select a GPU, hang, or serve GPUs to others; ``targets``; and the ancestors of all.

    The first kernel thread is one of them: it tells a host's process numbers from a container's.
    """
    try:
        pids = host.pids()
    except Unknown:
        return ()
    known = set(pids)
    chosen = {pid for pid in pids if pid in targets or pid in (1, _KTHREADD) or _matters(host, pid)}
    for pid in tuple(chosen):
        chosen.update(process.ancestors(host, pid))
    return tuple(sorted(chosen & known))


def _matters(host: Host, pid: int) -> bool:
    if GPU_VARIABLE.search(_try(host.read, f"/proc/{pid}/environ") or b"") is not None:
        return True
    stat = _try(host.text, f"/proc/{pid}/stat") or ""
    comm, _, rest = stat.partition("(")[2].rpartition(")")
    if comm in _DAEMONS or rest.strip().startswith("D"):
        return True
    return bool(_try(process.device_descriptors, host, pid, _GPU_NODES)) or any(
        name in (_try(host.text, f"/proc/{pid}/maps") or "") for name in ("/libcuda.so", "/libnvidia-ml.so")
    )


def ask_process(recorder: Recorder, pid: int) -> None:
    """One process: identity, place, environment, descriptors and libraries; its view, where that is not the host's."""
    base = f"/proc/{pid}"
    for name in _PROCESS_FILES:
        _try(recorder.read, f"{base}/{name}")
    for name in _PROCESS_LINKS:
        _try(recorder.readlink, f"{base}/{name}")
    for name in _try(recorder.listdir, f"{base}/fd") or ():
        target = _try(recorder.host.readlink, f"{base}/fd/{name}")
        if target is not None and target.startswith(_GPU_NODES):
            _try(recorder.readlink, f"{base}/fd/{name}")
    if not sees_host(recorder, pid):
        _ask_view(recorder, f"{base}/root")
    _ask_cgroups(recorder, _try(recorder.text, f"{base}/cgroup") or "")
    if not recorder.live:
        _ask_probes(recorder, pid)


def _ask_cgroups(recorder: Recorder, text: str) -> None:
    """The device programs on all levels above a process, and the units it is in; ``text`` is its /proc/PID/cgroup."""
    for line in text.splitlines():
        hierarchy, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "", "")
        parts = [part for part in path.split("/") if part]
        for part in parts:
            if part.endswith((".service", ".scope")):
                _try(recorder.unit, part)
        if "devices" in controllers.split(","):
            mount = _try(cgroup_mount, recorder, "devices")
            _try(recorder.read, f"{mount}{path.rstrip('/')}/devices.list")
        if hierarchy == "0":
            for end in range(len(parts) + 1):
                _try(recorder.device_programs, "/" + "/".join(parts[:end]))


def _ask_probes(recorder: Recorder, pid: int) -> None:
    """What another record says of attempts to open nodes. Nothing is tried on a running machine."""
    for view in ("", f"/proc/{pid}/root"):
        for directory in ("/dev", *(f"/dev/{name}" for name in _BELOW_DEV)):
            for name in _try(recorder.host.listdir, view + directory) or ():
                if f"{directory}/{name}".startswith(_GPU_NODES):
                    _try(recorder.probe, pid, f"{directory}/{name}")


def sees_host(recorder: Recorder, pid: int) -> bool:
    """Whether what lies below /proc/PID/root is what the host has; by what was recorded of its links."""
    if pid == 1:
        return True

    def link(path: str) -> str | None:
        node = recorder.nodes.get(path)
        return None if node is None else node.target

    own = link(f"/proc/{pid}/ns/mnt")
    shared = own is not None and own in (link("/proc/1/ns/mnt"), link("/proc/self/ns/mnt"))
    return shared and link(f"/proc/{pid}/root") in (None, "/")


def _ask_view(recorder: Recorder, root: str) -> None:
    ask_devices(recorder, root)
    ask_libraries(recorder, root)
    _try(recorder.read, f"{root}/etc/os-release")
    for path in ("/sys/bus/pci/devices", "/sys/module/nvidia/initstate", "/run/nvidia-persistenced/socket"):
        _try(recorder.stat, root + path)
