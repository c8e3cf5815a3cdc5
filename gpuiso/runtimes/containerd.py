# SPDX-License-Identifier: Apache-2.0
"""containerd's config.toml: the CRI plugin's table in versions 1, 2, 3 and 4, in the file that decides.

containerd reads its file and then what ``imports`` names. Before release 2 a later file replaces the plugin's
whole table, after that it is merged (https://github.com/containerd/containerd/pull/9982). Changing the table in the
last file that has it is right in both cases.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from gpuiso.errors import BadInput, Unknown, UsageError
from gpuiso.host.protocol import Host
from gpuiso.runtimes.engine import (
    Edit,
    Engine,
    Place,
    Problem,
    Request,
    Setting,
    exists,
    nvidia_runtime,
    release,
    spec_dirs,
)
from gpuiso.runtimes.formats import Document, Path, decode, lookup
from gpuiso.runtimes.formats.toml import TomlDocument
from gpuiso.runtimes.keys import Key, KeyTable, absolute, each, matching

__all__ = ["CONTAINERD", "CRI_TABLE", "RUNTIME_KEYS", "runtime_settings"]

CONFIG = "/etc/containerd/config.toml"
#: Where the CRI plugin's table is, by the version of the file (containerd, docs/cri/config.md).
CRI_TABLE: dict[int, Path] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
    4: ("plugins", "io.containerd.cri.v1.runtime"),
}
_PLUGIN_IDS = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
#: enable_cdi came with 1.7 (https://github.com/containerd/containerd/pull/6654).
_CDI_SINCE = (1, 7)
_MERGES_SINCE = (2, 1)
_RUNC = "io.containerd.runc.v2"
_DEFAULT: Path = ("containerd", "default_runtime_name")
_RUNTIMES: Path = ("containerd", "runtimes")

RUNTIME_KEYS = (
    Key((*_RUNTIMES, "*", "runtime_type"), "text", "the shim", None, matching(r"\S+", "a name or a path")),
    Key((*_RUNTIMES, "*", "options", "BinaryName"), "text", "the runtime's program", None, matching(r".+", "a path")),
    Key((*_RUNTIMES, "*", "options", "SystemdCgroup"), "boolean", "cgroups through systemd; the kubelet must agree"),
    Key((*_RUNTIMES, "*", "options", "Root"), "text", "directory of the runtime's state"),
    Key((*_RUNTIMES, "*", "container_annotations"), "list", "annotations that are handed on to the runtime"),
    Key((*_RUNTIMES, "*", "pod_annotations"), "list", "annotations of the pod that are handed on to the runtime"),
    Key((*_RUNTIMES, "*", "base_runtime_spec"), "text", "an OCI config that every container starts from"),
    Key(
        (*_RUNTIMES, "*", "privileged_without_host_devices"),
        "boolean",
        "privileged containers do not get every device of the host",
    ),
    Key(
        (*_RUNTIMES, "*", "privileged_without_host_devices_all_devices_allowed"),
        "boolean",
        "and yet may open every one of them",
    ),
)
KEYS = KeyTable(
    (
        Key(("enable_cdi",), "boolean", "devices by CDI name (since 1.7; on by default since 2.0)"),
        Key(("cdi_spec_dirs",), "list", "directories of CDI specs, the last wins", None, each(absolute)),
        Key(_DEFAULT, "text", "the runtime of pods that name no RuntimeClass", "runc"),
        *RUNTIME_KEYS,
        Key(
            ("device_ownership_from_security_context",),
            "boolean",
            "device nodes belong to the user that runAsUser names",
            False,
        ),
        Key(("unset_seccomp_profile",), "text", "seccomp profile of pods that name none"),
    )
)


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    document: TomlDocument


def _load(host: Host, path: str) -> _File | None:
    data = host.read(path)
    return None if data is None else _File(path, TomlDocument(decode(data, path), path))


def _imported(host: Host, top: _File) -> Iterator[_File]:
    """The files that ``imports`` names, in the order in which they are read."""
    for pattern in _imports(top):
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(top.path), pattern))
        directory, name = posixpath.split(whole)
        try:
            names = host.listdir(directory) or ()
        except Unknown:
            continue
        for each_name in names:
            if fnmatch.fnmatchcase(each_name, name) and (found := _load(host, f"{directory}/{each_name}")):
                yield found


def _imports(top: _File | None) -> list[str]:
    found = None if top is None else lookup(top.document.data, ("imports",))
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _version(host: Host, top: _File | None) -> int:
    """The version of the file; without the key it is 1. A new file has what this containerd reads."""
    if top is None or not top.document.text.strip():
        installed = release(host, "containerd", "--version")
        return 3 if installed is not None and installed >= (2, 0) else 2
    version = lookup(top.document.data, ("version",))
    if version is None:
        return 1
    if version not in CRI_TABLE:
        raise BadInput(
            f"version = {version!r}: gpuiso knows versions 1 to {max(CRI_TABLE)}",
            file=top.path,
            line=top.document.line(("version",)),
        )
    return int(version)


def _config(request: Request) -> str:
    if request.preset != "rootless":
        return CONFIG
    if request.config_home is None:
        raise UsageError("--preset rootless is a user's own file: name it with --file")
    return f"{request.config_home}/containerd/config.toml"


def _place(request: Request) -> Place:
    host, main = request.host, _config(request)
    top = _load(host, main)
    if request.file is not None and top is not None and _drop_in(request.file, main):
        return _as_drop_in(host, request.file, top)
    if request.file is not None:
        main = request.file
        top = _load(host, main)
    version = _version(host, top)
    table = CRI_TABLE[version]
    files = [] if top is None else [top, *_imported(host, top)]
    deciding = next((one for one in reversed(files) if lookup(one.document.data, table) is not None), None)
    file = deciding.path if deciding is not None else main
    notes = () if file == main else (f"{file} is read after {main} and decides, so it is the one that is changed",)
    return Place(file, TomlDocument, table, f"version = {version}\n" if version > 1 else "", notes=notes)


def _drop_in(file: str, main: str) -> bool:
    return file != main and posixpath.dirname(posixpath.dirname(file)) == posixpath.dirname(main)


def _as_drop_in(host: Host, file: str, top: _File) -> Place:
    version = _version(host, top)
    table = CRI_TABLE[version]
    others = [one for one in (top, *_imported(host, top)) if one.path != file]
    holder = next((one for one in others if lookup(one.document.data, table) is not None), None)
    installed = release(host, "containerd", "--version")
    if holder is not None and (installed is None or installed < _MERGES_SINCE):
        raise UsageError(
            f"{file} would replace the whole table of the CRI plugin in {holder.path}: containerd before"
            f" {_MERGES_SINCE[0]}.{_MERGES_SINCE[1]} does not merge them",
            hint="without --file the table is changed where it is",
        )
    pattern = f"{posixpath.dirname(file)}/*.toml"
    imports = _imports(top)
    named = any(fnmatch.fnmatchcase(file, posixpath.join(posixpath.dirname(top.path), one)) for one in imports)
    also = () if named else (Edit(top.path, ("imports",), [*imports, pattern]),)
    return Place(file, TomlDocument, table, f"version = {version}\n" if version > 1 else "", also)


def _rootful(request: Request, place: Place) -> Iterator[Setting]:
    path, _ = nvidia_runtime(request.host)
    if _knows_cdi(request) is not False:
        yield Setting(("enable_cdi",), True)
    yield from runtime_settings("nvidia", path, _systemd_cgroup(request, place))


def runtime_settings(name: str, program: str, systemd_cgroup: bool | None) -> Iterator[Setting]:
    """A runtime of runc's kind."""
    yield Setting((*_RUNTIMES, name, "runtime_type"), _RUNC)
    yield Setting((*_RUNTIMES, name, "options", "BinaryName"), program)
    if systemd_cgroup is not None:
        yield Setting((*_RUNTIMES, name, "options", "SystemdCgroup"), systemd_cgroup)


def _systemd_cgroup(request: Request, place: Place) -> bool | None:
    """What the default runtime says, for two runtimes of a node may not differ in this."""
    top = _load(request.host, _config(request))
    files = [] if top is None else [top, *_imported(request.host, top)]
    own = _load(request.host, place.file)
    for one in (own, *reversed(files)):
        table = {} if one is None else lookup(one.document.data, place.prefix) or {}
        for name in (lookup(table, _DEFAULT), "runc", "crun"):
            found = lookup(table, (*_RUNTIMES, name, "options", "SystemdCgroup")) if isinstance(name, str) else None
            if isinstance(found, bool):
                return found
    return None


def _cdi(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(("enable_cdi",), True)
    yield Setting(("cdi_spec_dirs",), spec_dirs())


def _hardened(request: Request, place: Place) -> Iterator[Setting]:
    yield from _cdi(request, place)
    yield Setting(_DEFAULT, "runc")


def _knows_cdi(request: Request) -> bool | None:
    installed = release(request.host, "containerd", "--version")
    return None if installed is None else installed >= _CDI_SINCE


def _problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    def problem(severity: str, path: Path, message: str, whole: bool = False) -> Problem:
        line = document.line(path if whole else (*place.prefix, *path))
        return Problem(severity, message, place.file, line)  # type: ignore[arg-type]

    table = lookup(document.data, place.prefix) or {}
    disabled = lookup(document.data, ("disabled_plugins",))
    if isinstance(disabled, list) and any(one in _PLUGIN_IDS for one in disabled):
        yield problem(
            "warning",
            ("disabled_plugins",),
            "disabled_plugins names the CRI plugin, so that nothing of this counts: Kubernetes cannot use this"
            " containerd (Docker's package installs it so)",
            whole=True,
        )
    version = lookup(document.data, ("version",))
    tables = {path for number, path in CRI_TABLE.items() if number != (version or 1)} - {place.prefix}
    for other in sorted(tables):
        if lookup(document.data, other) is not None:
            yield problem(
                "warning",
                other,
                f"[{'.'.join(other)}] is of another version of the file than {version or 1}",
                whole=True,
            )
    if table.get("enable_cdi") is True and _knows_cdi(request) is False:
        yield problem("error", ("enable_cdi",), "enable_cdi: this containerd has no CDI (1.7 has)")
    runtimes = lookup(table, _RUNTIMES) or {}
    default = lookup(table, _DEFAULT)
    if isinstance(default, str) and default != "runc" and default not in runtimes:
        yield problem("error", _DEFAULT, f"default_runtime_name is {default!r}, which runtimes does not define")
    cgroups = {}
    for name in runtimes:
        program = lookup(runtimes, (name, "options", "BinaryName"))
        where = (*_RUNTIMES, name, "options")
        if isinstance(program, str) and program.startswith("/") and exists(request.host, program) is False:
            yield problem("warning", (*where, "BinaryName"), f"runtime {name}: there is no {program}")
        systemd = lookup(runtimes, (name, "options", "SystemdCgroup"))
        if isinstance(systemd, bool):
            cgroups[name] = systemd
    if len(set(cgroups.values())) > 1:
        odd = next(name for name in cgroups if cgroups[name] is not cgroups[next(iter(cgroups))])
        yield problem(
            "warning",
            (*_RUNTIMES, odd, "options", "SystemdCgroup"),
            f"SystemdCgroup of runtime {odd} differs from that of {next(iter(cgroups))}: the kubelet knows one driver",
        )


CONTAINERD = Engine(
    name="containerd",
    title="containerd",
    keys=KEYS,
    presets={"rootful": _rootful, "rootless": _cdi, "hardened": _hardened, "cdi": _cdi},
    place=_place,
    problems=_problems,
    services=("containerd.service",),
    restart_says="containers go on running",
    check=lambda file: ("containerd", "--config", file, "config", "dump"),
    user_service="containerd.service",
)
