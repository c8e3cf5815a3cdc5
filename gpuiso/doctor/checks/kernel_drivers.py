# SPDX-License-Identifier: Apache-2.0
"""Which kernel driver holds a GPU: NVIDIA's, nouveau, one for passthrough, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from shlex import quote

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity, Target
from gpuiso.doctor.machine import Machine
from gpuiso.doctor.registry import machine_check
from gpuiso.errors import NotFound, Unknown
from gpuiso.gpu.libraries import LIBCUDA, find_library
from gpuiso.gpu.model import Gpu
from gpuiso.host.process import device_descriptors

__all__: list[str] = []

CUDA_GUIDE = "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/"

NOUVEAU = Rule(
    "GPU-NOUVEAU",
    "warning",
    "nouveau holds an NVIDIA GPU",
    "the kernel's own driver (nouveau, nova) is bound to an NVIDIA GPU, so that NVIDIA's driver cannot take it",
    ("https://github.com/negativo17/nvidia-driver/issues/73", CUDA_GUIDE),
)
VFIO = Rule(
    "GPU-VFIO",
    "info",
    "A GPU is set aside for virtual machines",
    "a GPU is bound to vfio-pci or pci-stub: virtual machines can have it, and no program of the host",
    ("https://docs.kernel.org/driver-api/vfio.html",),
)
MODULE_NOT_LOADED = Rule(
    "GPU-MODULE-NOT-LOADED",
    "error",
    "No driver holds an NVIDIA GPU",
    "an NVIDIA GPU is on the bus without a driver: the module is missing, rejected, blacklisted or not for this GPU",
    ("https://github.com/linux-surface/linux-surface/issues/906", CUDA_GUIDE),
)

_KERNELS_OWN = frozenset({"nouveau", "nova_core", "nova-core"})
_PASSTHROUGH = frozenset({"vfio-pci", "pci-stub"})
#: Messages about a module that the kernel would not take, and whether a signature is the reason.
_REJECTED = re.compile(
    r"Key was rejected by service"
    r"|Loading of (?:unsigned module|module with unavailable key) is rejected"
    r"|Lockdown: \S+: unsigned module loading is restricted"
)
_REFUSED = re.compile(
    r"NVRM: .*(?:probe routine was not called|not supported by|No NVIDIA GPU found|requires use of the NVIDIA open)"
    r"|nvidia: (?:version magic|disagrees about version of symbol|Unknown symbol)"
)


def _bound(gpu: Gpu) -> Evidence:
    says = "no driver is bound" if gpu.driver is None else f"bound to {gpu.driver}"
    return Evidence(f"/sys/bus/pci/devices/{gpu.pci_address}/driver", says)


def _target(gpus: Sequence[Gpu]) -> Target:
    return Target(gpu=gpus[0].pci_address if len(gpus) == 1 else None)


def _addresses(gpus: Sequence[Gpu]) -> str:
    return ", ".join(gpu.pci_address for gpu in gpus)


def _log(machine: Machine, pattern: re.Pattern[str], most: int = 3) -> list[Evidence]:
    """The last messages of the kernel that match; without a kernel log, nothing is claimed about it."""
    try:
        lines = [line for line in machine.kernel_log if pattern.search(line)]
    except Unknown:
        return []
    return [Evidence("kernel log", line.strip()) for line in lines[-most:]]


def _installed(machine: Machine) -> list[Evidence]:
    """Signs that NVIDIA's driver is meant to be used: its module in memory or on disk, or its libraries."""
    host = machine.host
    found = []
    try:
        if "nvidia" in machine.modules:
            found.append(Evidence("/proc/modules", "nvidia is loaded"))
    except Unknown:
        pass  # the other signs may be readable
    try:
        path = f"/lib/modules/{host.kernel}/modules.dep"
        name = _module_file(host.text(path) or "")
        if name is not None:
            found.append(Evidence(path, name))
    except Unknown:
        pass
    try:
        library = find_library(host, LIBCUDA)
        if library is not None:
            found.append(Evidence(library.path, f"leads to {library.file}"))
    except Unknown:
        pass
    return found


def _module_file(modules_dep: str) -> str | None:
    match = re.search(r"^\S*/nvidia(?:-current)?\.ko(?:\.\w+)?(?=:)", modules_dep, re.MULTILINE)
    return None if match is None else match[0]


@machine_check(NOUVEAU)
def kernels_own_driver(machine: Machine) -> Iterator[Finding]:
    """An error where NVIDIA's driver is installed: it cannot take the GPU."""
    gpus = [gpu for gpu in machine.inventory.gpus if gpu.vendor == "nvidia" and gpu.driver in _KERNELS_OWN]
    if not gpus:
        return
    signs = _installed(machine)
    driver = gpus[0].driver
    install = "" if signs else ", and install NVIDIA's driver"
    yield NOUVEAU.finding(
        f"{driver} drives {_addresses(gpus)}. CUDA needs NVIDIA's own driver, which cannot take a GPU that another"
        f" driver holds{'; it is installed here' if signs else ''}.",
        severity="error" if signs else "warning",
        evidence=[*(_bound(gpu) for gpu in gpus), *signs, *_log(machine, _REFUSED)],
        fix=[
            Fix(
                f"Keep {driver} from loading{install}, then reboot (on Fedora and RHEL: sudo dracut --force in place of"
                " update-initramfs)",
                f"printf 'blacklist {driver}\\noptions {driver} modeset=0\\n' |"
                f" sudo tee /etc/modprobe.d/blacklist-{driver}.conf && sudo update-initramfs -u",
            )
        ],
        target=_target(gpus),
    )


@machine_check(VFIO)
def passthrough(machine: Machine) -> Iterator[Finding]:
    """Mostly wanted; doubtful where NVIDIA's driver was loaded and has nothing left to drive."""
    gpus = [gpu for gpu in machine.inventory.gpus if gpu.driver in _PASSTHROUGH]
    if not gpus:
        return
    severity: Severity = "info"
    more: list[Evidence] = []
    cause = f"{gpus[0].driver} holds {_addresses(gpus)}: for virtual machines, not for programs of this host."
    if _driver_is_idle(machine):
        severity = "warning"
        cause += " NVIDIA's driver is loaded and has no GPU left, and no virtual machine uses one now."
        more.append(Evidence("/proc/modules", "nvidia is loaded"))
    yield VFIO.finding(
        cause,
        severity=severity,
        title="All GPUs are set aside for virtual machines, and none runs" if severity == "warning" else None,
        evidence=[*(_bound(gpu) for gpu in gpus), *more],
        fix=[
            Fix(
                f"To give {gpu.pci_address} back to the host until the next boot",
                f"sudo sh -c {quote(_release(gpu))}",
            )
            for gpu in gpus[:1]
        ],
        target=_target(gpus),
    )


def _release(gpu: Gpu) -> str:
    address = quote(gpu.pci_address)
    return (
        f"echo {address} > /sys/bus/pci/drivers/{gpu.driver}/unbind"
        f" && echo > /sys/bus/pci/devices/{address}/driver_override"
        f" && echo {address} > /sys/bus/pci/drivers_probe"
    )


def _driver_is_idle(machine: Machine) -> bool:
    nvidia = [gpu for gpu in machine.inventory.gpus if gpu.vendor == "nvidia"]
    if not nvidia or any(gpu.driver not in _PASSTHROUGH for gpu in nvidia) or "nvidia" not in machine.modules:
        return False
    for pid in machine.host.pids():
        try:
            if device_descriptors(machine.host, pid, ("/dev/vfio/",)):
                return False
        except (NotFound, Unknown):
            continue  # a process that ended, or whose descriptors may not be seen
    return True


@machine_check(MODULE_NOT_LOADED)
def without_driver(machine: Machine) -> Iterator[Finding]:
    """An NVIDIA GPU that nobody drives, and why, as far as the kernel's log and /lib/modules tell."""
    gpus = [gpu for gpu in machine.inventory.gpus if gpu.vendor == "nvidia" and gpu.driver is None]
    if gpus:
        without_region = _without_region(machine)
        gpus = [gpu for gpu in gpus if gpu.pci_address not in without_region]
    if not gpus:
        return
    loaded = "nvidia" in machine.modules
    rejected = _log(machine, _REJECTED)
    refused = _log(machine, _REFUSED)
    signs = _installed(machine)
    bound = [_bound(gpu) for gpu in gpus]
    what = f"{_addresses(gpus)} {'is' if len(gpus) == 1 else 'are'} on the bus, but no driver holds"
    what += " it." if len(gpus) == 1 else " them."
    if rejected and not loaded:
        cause, fix = f"{what} The kernel rejected the module because of its signature.", _signature_fixes()
        evidence = [*bound, *rejected]
    elif loaded:
        cause = f"{what} NVIDIA's driver is loaded and did not take {'it' if len(gpus) == 1 else 'them'}."
        fix, evidence = _refusal_fixes(gpus), [*bound, Evidence("/proc/modules", "nvidia is loaded"), *refused]
    else:
        cause, fix = _not_loaded(machine, what)
        evidence = [*bound, Evidence("/proc/modules", "nvidia is not loaded"), *signs, *refused]
    yield MODULE_NOT_LOADED.finding(
        cause,
        severity="error" if signs or rejected or loaded else "warning",
        evidence=evidence,
        fix=fix,
        target=_target(gpus),
    )


def _without_region(machine: Machine) -> frozenset[str | None]:
    """GPUs that no driver can take, which GPU-PCI-REGION tells."""
    try:
        return frozenset(address for address, _ in machine.driver_log.bad_regions)
    except Unknown:
        return frozenset()


def _not_loaded(machine: Machine, what: str) -> tuple[str, list[Fix]]:
    kernel = machine.host.kernel
    load = Fix("Load the driver; what it prints if it fails says why", "sudo modprobe nvidia nvidia-uvm")
    try:
        text = machine.host.text(f"/lib/modules/{kernel}/modules.dep")
    except Unknown:
        return f"{what} NVIDIA's driver is not loaded.", [load]
    if _module_file(text or "") is not None:
        blacklist = Fix("See whether it is blacklisted", "grep -rn nvidia /etc/modprobe.d /usr/lib/modprobe.d")
        return f"{what} NVIDIA's driver is installed for kernel {kernel}, but not loaded.", [load, blacklist]
    cause = f"{what} NVIDIA's driver is not loaded, and there is none for the running kernel {kernel}."
    return cause, [
        Fix("Where it is built by DKMS, build it for this kernel", f"sudo dkms autoinstall -k {quote(kernel)}"),
        Fix("Where it is not installed: on Ubuntu this installs the fitting driver", "sudo ubuntu-drivers install"),
    ]


def _signature_fixes() -> list[Fix]:
    return [
        Fix(
            "Secure Boot takes only signed modules: enrol the key that signed it, and confirm at the next boot (path of"
            " Ubuntu and Debian)",
            "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der",
        ),
        Fix("Or turn Secure Boot off in the firmware; this tells whether it is on", "mokutil --sb-state"),
    ]


def _refusal_fixes(gpus: Sequence[Gpu]) -> list[Fix]:
    return [
        Fix("See what the driver says of this GPU", "sudo dmesg | grep NVRM"),
        Fix(
            "A GPU before Turing needs the proprietary modules, one from Blackwell on the open ones: install what"
            " fits. Otherwise have it probed again",
            f"echo {quote(gpus[0].pci_address)} | sudo tee /sys/bus/pci/drivers_probe",
        ),
    ]
