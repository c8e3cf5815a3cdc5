# SPDX-License-Identifier: Apache-2.0
"""CRI-O's configuration, as a drop-in (crio.conf(5), crio.conf.d(5)): later files win, option by option."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host
from gpuiso.runtimes.engine import Engine, Place, Problem, Request, Setting, exists, nvidia_runtime, spec_dirs
from gpuiso.runtimes.formats import Document, Path, decode, lookup
from gpuiso.runtimes.formats.toml import TomlDocument
from gpuiso.runtimes.keys import Key, KeyTable, absolute, each, one_of

__all__ = ["CRIO"]

CONFIG = "/etc/crio/crio.conf"
DIRECTORY = "/etc/crio/crio.conf.d"
DROP_IN = f"{DIRECTORY}/99-gpuiso.conf"
_TABLE: Path = ("crio", "runtime")
#: What a second runtime has in common with the default one.
_COPIED = ("monitor_path", "monitor_cgroup", "runtime_root")

KEYS = KeyTable(
    (
        Key(("default_runtime",), "text", "the runtime of pods that name no RuntimeClass"),
        Key(("runtimes", "*", "runtime_path"), "text", "the runtime's program", None, absolute),
        Key(("runtimes", "*", "runtime_type"), "text", "how it is called", "oci", one_of("oci", "vm", "pod")),
        Key(("runtimes", "*", "runtime_root"), "text", "directory of the runtime's state"),
        Key(("runtimes", "*", "monitor_path"), "text", "the program conmon"),
        Key(("runtimes", "*", "monitor_cgroup"), "text", "where conmon runs: system.slice or pod"),
        Key(("runtimes", "*", "allowed_annotations"), "list", "annotations that pods of this runtime may use"),
        Key(
            ("runtimes", "*", "privileged_without_host_devices"),
            "boolean",
            "privileged containers do not get every device of the host",
            False,
        ),
        Key(("cdi_spec_dirs",), "list", "directories of CDI specs, the last wins", None, each(absolute)),
        Key(("hooks_dir",), "list", "directories of OCI hooks", None, each(absolute)),
        Key(("allowed_devices",), "list", "nodes that the annotation io.kubernetes.cri-o.Devices may name"),
        Key(("additional_devices",), "list", "nodes that every container gets, as HOST:CONTAINER:rwm"),
        Key(
            ("device_ownership_from_security_context",),
            "boolean",
            "device nodes belong to the user that runAsUser names",
            False,
        ),
        Key(("seccomp_profile",), "text", "the default seccomp profile (see gpuiso hook seccomp)"),
        Key(("cgroup_manager",), "text", "who makes cgroups", "systemd", one_of("systemd", "cgroupfs")),
    )
)


def _place(request: Request) -> Place:
    file = request.file or DROP_IN
    # CRI-O reads every file below that directory, whatever its name: a backup there would be read after the new one.
    inside = posixpath.dirname(posixpath.normpath(file)) == DIRECTORY
    return Place(file, TomlDocument, _TABLE, backups=posixpath.dirname(DIRECTORY) if inside else None)


def _files(host: Host) -> Iterator[TomlDocument]:
    """What CRI-O reads, in its order."""
    try:
        names = host.listdir(DIRECTORY) or ()
    except Unknown:
        names = ()
    for path in (CONFIG, *(f"{DIRECTORY}/{name}" for name in names)):
        try:
            data = host.read(path)
        except Unknown:
            continue
        if data is not None:
            yield TomlDocument(decode(data, path), path)


def _last(host: Host, path: Path) -> object:
    found: object = None
    for document in _files(host):
        value = lookup(document.data, (*_TABLE, *path))
        found = value if value is not None else found
    return found


def _rootful(request: Request, place: Place) -> Iterator[Setting]:
    program, _ = nvidia_runtime(request.host)
    runtime: Path = ("runtimes", "nvidia")
    yield Setting((*runtime, "runtime_path"), program)
    yield Setting((*runtime, "runtime_type"), "oci")
    default = _last(request.host, ("default_runtime",))
    for key in _COPIED:
        for name in (default, "crun", "runc"):
            value = _last(request.host, ("runtimes", name, key)) if isinstance(name, str) and name != "nvidia" else None
            if isinstance(value, str) and value:
                yield Setting((*runtime, key), value)
                break


def _cdi(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(("cdi_spec_dirs",), spec_dirs())


def _hardened(request: Request, place: Place) -> Iterator[Setting]:
    """Pods name devices by CDI through the kubelet alone: no node by annotation, none for everybody."""
    yield Setting(("cdi_spec_dirs",), spec_dirs())
    yield Setting(("allowed_devices",), [])
    yield Setting(("additional_devices",), [])


def _problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    table = lookup(document.data, _TABLE) or {}

    def problem(severity: str, path: Path, message: str) -> Problem:
        return Problem(severity, message, place.file, document.line((*_TABLE, *path)))  # type: ignore[arg-type]

    runtimes = table.get("runtimes")
    runtimes = runtimes if isinstance(runtimes, dict) else {}
    for name, runtime in runtimes.items():
        program = runtime.get("runtime_path") if isinstance(runtime, dict) else None
        if isinstance(program, str) and program.startswith("/") and exists(request.host, program) is False:
            yield problem("warning", ("runtimes", name, "runtime_path"), f"runtime {name}: there is no {program}")
    default = table.get("default_runtime")
    elsewhere = {"runc", "crun"} | {
        name for one in _files(request.host) for name in (lookup(one.data, (*_TABLE, "runtimes")) or {})
    }
    if isinstance(default, str) and default not in runtimes and default not in elsewhere:
        yield problem("error", ("default_runtime",), f"default_runtime is {default!r}, which runtimes does not define")
    nodes = table.get("additional_devices")
    if isinstance(nodes, list) and any(isinstance(one, str) and one.startswith("/dev/nvidia") for one in nodes):
        yield problem("warning", ("additional_devices",), "additional_devices gives every container a GPU")


CRIO = Engine(
    name="crio",
    title="CRI-O",
    keys=KEYS,
    presets={"rootful": _rootful, "hardened": _hardened, "cdi": _cdi},
    place=_place,
    problems=_problems,
    services=("crio.service",),
    restart_says="containers go on running",
)
