# SPDX-License-Identifier: Apache-2.0
"""The user-mode driver against the kernel module: mismatches, stubs, and compatibility packages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from gpuiso.doctor.finding import Evidence, Finding, Fix, Rule, Severity
from gpuiso.doctor.machine import Machine, Subject
from gpuiso.doctor.registry import machine_check, process_check
from gpuiso.errors import Unknown
from gpuiso.gpu.libraries import LIBCUDA, LIBNVIDIA_ML, DriverLibrary, find_library, library_at, version_tuple

__all__: list[str] = []

COMPAT_GUIDE = "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html"

DRV_MISMATCH = Rule(
    "GPU-DRV-MISMATCH",
    "error",
    "The driver's libraries and its kernel module have different versions",
    "libcuda or libnvidia-ml on disk is of another version than the loaded module: new GPU programs fail",
    (
        "https://github.com/NVIDIA/nvidia-docker/issues/182",
        "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/",
    ),
)
LIB_STUB = Rule(
    "GPU-LIB-STUB",
    "error",
    "The process uses the stub of libcuda",
    "a stubs directory, which is only for linking, stands on the library path: cuInit fails with 34",
    ("https://github.com/numba/numba/issues/8985", "https://github.com/NVIDIA/warp/issues/219"),
)
CUDA_COMPAT = Rule(
    "GPU-CUDA-COMPAT-804",
    "error",
    "A CUDA compatibility package does not fit this GPU or driver",
    "libcuda comes from cuda-compat, on a GPU it does not support or beside a newer driver: cuInit gives 803 or 804",
    (COMPAT_GUIDE, "https://github.com/NVIDIA/nvidia-docker/issues/1515"),
)

# osapi.c of the open modules; older modules wrap the message after "but".
_MISMATCH = re.compile(
    r"API mismatch: the client(?P<who> '[^']*' \(pid \d+\))? has the version (?P<client>[\d.]+\d),? but"
    r"\s(?:\[[\s\d.]+\] )?(?:NVRM: )?this kernel module has the version (?P<module>[\d.]+\d)"
)
#: GPUs for which NVIDIA gives no forward compatibility; of other workstation boards some are supported.
_CONSUMER = re.compile(r"\b(?:GeForce|TITAN)\b")


def _is_compat(path: str) -> bool:
    return "/compat/" in path


@machine_check(DRV_MISMATCH)
def versions_differ(machine: Machine) -> Iterator[Finding]:
    """The library a program of the host would load, against the loaded module."""
    loaded = machine.inventory.driver_version
    if loaded is None:
        return
    differing = []
    unknown: Unknown | None = None
    for soname in (LIBCUDA, LIBNVIDIA_ML):
        try:
            library = find_library(machine.host, soname)
        except Unknown as error:
            unknown = error
            continue
        if library is not None and library.version not in (None, loaded) and not _is_compat(library.file):
            differing.append(library)
    messages = _mismatches(machine, loaded)
    if differing:
        yield _mismatch(loaded, differing, messages)
    elif messages:
        yield _logged_mismatch(loaded, messages, known=unknown is None)
    elif unknown is not None:
        raise unknown


@dataclass(frozen=True, slots=True)
class _Message:
    who: str
    client: str
    text: str


def _mismatches(machine: Machine, loaded: str) -> list[_Message]:
    """What the loaded module complained of; complaints of a module loaded before it say nothing now."""
    try:
        text = "\n".join(machine.kernel_log)
    except Unknown:
        return []
    found = {}
    for match in _MISMATCH.finditer(text):
        if match["module"] == loaded and match["client"] != loaded:
            who = (match["who"] or " A program").strip()
            says = (
                f"API mismatch: the client{match['who'] or ''} has the version {match['client']}, the module {loaded}"
            )
            found[who, match["client"]] = _Message(who, match["client"], says)
    return list(found.values())


def _mismatch(loaded: str, differing: list[DriverLibrary], messages: list[_Message]) -> Finding:
    version = differing[0].version
    return DRV_MISMATCH.finding(
        f"The kernel runs NVIDIA's driver {loaded}, but the libraries on disk are of {version}: they were updated, and"
        " the module was not loaded again. Programs that run go on; new ones fail (nvidia-smi says: Driver/library"
        " version mismatch).",
        evidence=[
            Evidence("/proc/driver/nvidia/version", f"driver {loaded}"),
            *(Evidence(library.path, f"leads to {library.file}") for library in differing),
            *(Evidence("kernel log", message.text) for message in messages[-2:]),
        ],
        fix=[
            Fix("Reboot; the new module is loaded then", "sudo reboot"),
            Fix(
                "Or load it again after ending all that uses a GPU, the display and nvidia-persistenced included",
                "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia nvidia-uvm",
            ),
        ],
    )


def _logged_mismatch(loaded: str, messages: list[_Message], *, known: bool) -> Finding:
    last = messages[-1]
    severity: Severity = "info" if known else "warning"
    where = "The host's own libraries fit; it probably was" if known else "It may have been"
    return DRV_MISMATCH.finding(
        f"{last.who} came with NVIDIA's libraries of version {last.client}, and the loaded module {loaded} turned it"
        f" away. {where} a container whose image or volume holds libraries of its own.",
        severity=severity,
        title="A program came with the driver's libraries of another version",
        evidence=[Evidence("kernel log", message.text) for message in messages[-3:]],
        fix=[
            Fix(
                "Remove libcuda and libnvidia-* from the image (packages such as libnvidia-compute), and let the"
                " container runtime bring in those of the host"
            )
        ],
    )


def _library_path(subject: Subject) -> list[str]:
    return [part.rstrip("/") for part in subject.env.get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]


@process_check(LIB_STUB)
def stub(subject: Subject) -> Iterator[Finding]:
    """A stub in use, or first on the path of a process that has not loaded libcuda yet."""
    directories = [part for part in _library_path(subject) if part.endswith("/stubs") or "/stubs/" in part]
    if not directories and not subject.asked:
        return
    libcuda = [path for path in subject.mapped_files if path.rsplit("/", 1)[-1].startswith("libcuda.so")]
    used = [path for path in libcuda if "/stubs/" in path]
    if used:
        evidence = [Evidence(f"/proc/{subject.pid}/maps", path) for path in used]
        cause = f"{subject.comm} (pid {subject.pid}) has loaded {used[0]}, a stub to link against that holds no driver."
        severity: Severity = "error"
    elif directories and not libcuda and _stub_in(subject, directories):
        evidence = []
        cause = f"{subject.comm} (pid {subject.pid}) looks for libraries in {directories[0]}: libcuda there is a stub."
        severity = "warning"
    else:
        return
    if directories:
        evidence.append(subject.environ_evidence("LD_LIBRARY_PATH"))
    rest = ":".join(part for part in _library_path(subject) if part not in directories)
    yield LIB_STUB.finding(
        f"{cause} cuInit fails with 34 (CUDA_ERROR_STUB_LIBRARY).",
        severity=severity,
        evidence=evidence,
        fix=[
            Fix(
                "Take stubs directories off the path, then start it again",
                f"export LD_LIBRARY_PATH={quote(rest)}" if rest else "unset LD_LIBRARY_PATH",
            )
            if directories
            else Fix("Take stubs directories out of the program's run path (readelf -d shows it), and build it again")
        ],
        target=subject.target,
    )


def _stub_in(subject: Subject, directories: list[str]) -> bool:
    """Whether the linker finds libcuda there before it finds the driver's."""
    root = f"/proc/{subject.pid}/root"
    for directory in _library_path(subject):
        if any(subject.host.stat(f"{root}{directory}/{name}") is not None for name in (LIBCUDA, "libcuda.so")):
            return directory in directories
    return False


@process_check(CUDA_COMPAT)
def compat_in_process(subject: Subject) -> Iterator[Finding]:
    """libcuda of a compatibility package, loaded or first on LD_LIBRARY_PATH."""
    loaded = subject.machine.inventory.driver_version
    on_path = [part for part in _library_path(subject) if _is_compat(f"{part}/")]
    if loaded is None or not (on_path or subject.asked) or "/dev/nvidia-uvm" in subject.holds:
        return  # nothing of that kind, or CUDA has started
    root = f"/proc/{subject.pid}/root"
    libcuda = [path for path in subject.mapped_files if path.rsplit("/", 1)[-1].startswith("libcuda.so")]
    source = f"/proc/{subject.pid}/maps"
    candidates = libcuda
    if not libcuda:
        source = f"/proc/{subject.pid}/environ"
        candidates = [f"{part}/{LIBCUDA}" for part in on_path]
    for path in filter(_is_compat, candidates):
        library = library_at(subject.host, path, root)
        trouble = None if library is None else _trouble(subject.machine, library, loaded)
        if library is None or trouble is None:
            continue
        if libcuda:
            evidence = [Evidence(source, path)]
        else:
            evidence = [
                subject.environ_evidence("LD_LIBRARY_PATH"),
                Evidence(f"{root}{path}", f"leads to {library.file}"),
            ]
        rest = ":".join(part for part in _library_path(subject) if part not in on_path)
        yield CUDA_COMPAT.finding(
            f"{subject.comm} (pid {subject.pid}) takes libcuda {library.version} from {path}. {trouble.cause}",
            severity=trouble.severity,
            evidence=[*evidence, *trouble.evidence],
            fix=[
                Fix(
                    "Take the package off the library path, then start it again",
                    f"export LD_LIBRARY_PATH={quote(rest)}" if rest else "unset LD_LIBRARY_PATH",
                ),
                *trouble.fix,
            ],
            target=subject.target,
        )
        return


@machine_check(CUDA_COMPAT)
def compat_on_host(machine: Machine) -> Iterator[Finding]:
    """A compatibility package that every program of the host gets, by /etc/ld.so.conf.d."""
    loaded = machine.inventory.driver_version
    if loaded is None:
        return
    library = find_library(machine.host, LIBCUDA)
    if library is None or not _is_compat(library.file):
        return
    trouble = _trouble(machine, library, loaded)
    if trouble is None:
        return
    yield CUDA_COMPAT.finding(
        f"Programs of this host get libcuda {library.version} from {library.path}. {trouble.cause}",
        severity=trouble.severity,
        evidence=[Evidence("/etc/ld.so.cache", f"{LIBCUDA} is {library.path} (to {library.file})"), *trouble.evidence],
        fix=[
            Fix("Find what puts the directory there, remove it and run ldconfig", "grep -rn compat /etc/ld.so.conf.d"),
            *trouble.fix,
        ],
    )


@dataclass(frozen=True, slots=True)
class _Trouble:
    cause: str
    severity: Severity
    evidence: tuple[Evidence, ...]
    fix: tuple[Fix, ...]


def _trouble(machine: Machine, library: DriverLibrary, loaded: str) -> _Trouble | None:
    """Why this libcuda cannot work here, None where it may."""
    if library.version is None or library.version == loaded:
        return None
    driver = Evidence("/proc/driver/nvidia/version", f"driver {loaded}")
    if version_tuple(library.version) < version_tuple(loaded):
        cause = (
            f"The driver {loaded} is newer, and a compatibility package only serves older ones: cuInit fails with 803."
        )
        return _Trouble(cause, "error", (driver,), ())
    consumer = [gpu for gpu in machine.nvidia if gpu.name is not None and _CONSUMER.search(gpu.name)]
    if not consumer:
        return None
    seen = tuple(
        Evidence(f"/proc/driver/nvidia/gpus/{gpu.pci_address}/information", f"Model: {gpu.name}") for gpu in consumer
    )
    cause = f"NVIDIA gives no forward compatibility on {consumer[0].name}: cuInit fails with 804."
    update = Fix(f"Update the driver of the host from {loaded} to {library.version} or later instead")
    severity: Severity = "error" if len(consumer) == len(machine.nvidia) else "warning"
    return _Trouble(cause, severity, (driver, *seen), (update,))
