# SPDX-License-Identifier: Apache-2.0
"""podman's containers.conf, as a drop-in (containers.conf(5)): later files win, option by option."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.errors import Unknown, UsageError
from gpuiso.host.protocol import Host
from gpuiso.runtimes.engine import Engine, Place, Problem, Request, Setting, exists, nvidia_runtime, release, spec_dirs
from gpuiso.runtimes.formats import Document, Path, lookup
from gpuiso.runtimes.formats.toml import TomlDocument
from gpuiso.runtimes.keys import Key, KeyTable, absolute, each, one_of

__all__ = ["PODMAN"]

DROP_IN = "/etc/containers/containers.conf.d/50-gpuiso.conf"
HOOK_DIRECTORIES = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_SPEC_DIRS: Path = ("engine", "cdi_spec_dirs")
_HOOKS: Path = ("engine", "hooks_dir")
#: Before, both directories are built in; since then /etc/cdi alone is
#: (https://github.com/containers/podman/pull/25717, https://github.com/containers/podman/issues/26569).
_SPEC_DIRS_SINCE = (5, 5)

KEYS = KeyTable(
    (
        Key(
            _SPEC_DIRS,
            "list",
            "directories of CDI specs, the last wins (since 5.5; before, /etc/cdi and /var/run/cdi)",
            None,
            each(absolute),
        ),
        Key(_HOOKS, "list", "directories of OCI hooks, later ones first", None, each(absolute)),
        Key(("engine", "runtime"), "text", "the runtime of containers that ask for none"),
        Key(("engine", "runtimes", "*"), "list", "where a runtime's program may be; the first that there is counts"),
        Key(("engine", "cgroup_manager"), "text", "who makes cgroups", "systemd", one_of("systemd", "cgroupfs")),
        Key(("containers", "devices"), "list", "devices of every container, as HOST:CONTAINER:rwm or a CDI name"),
        Key(("containers", "annotations"), "list", "annotations of every container, as NAME=VALUE"),
        Key(("containers", "seccomp_profile"), "text", "the default seccomp profile (see gpuiso hook seccomp)"),
        Key(("containers", "label"), "boolean", "SELinux separation of containers", True),
    )
)


def _place(request: Request) -> Place:
    file = request.file or DROP_IN
    if request.file is None and request.preset == "rootless":
        if request.config_home is None:
            raise UsageError("--preset rootless is a user's own file: name it with --file")
        file = f"{request.config_home}/containers/containers.conf.d/50-gpuiso.conf"
    return Place(file, TomlDocument)


def _rootful(request: Request, place: Place) -> Iterator[Setting]:
    program, _ = nvidia_runtime(request.host)
    yield from _cdi(request, place)
    yield Setting(("engine", "runtimes", "nvidia"), [program])


def _cdi(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(_SPEC_DIRS, spec_dirs())


def _hardened(request: Request, place: Place) -> Iterator[Setting]:
    """Hooks of packages are left out: NVIDIA's old one gives a GPU to whatever image asks for it."""
    yield Setting(_SPEC_DIRS, spec_dirs())
    yield Setting(_HOOKS, [HOOK_DIRECTORIES[1]])


def _problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    def problem(severity: str, path: Path, message: str) -> Problem:
        return Problem(severity, message, place.file, document.line(path))  # type: ignore[arg-type]

    dirs = lookup(document.data, _SPEC_DIRS)
    version = release(request.host, "podman", "--version")
    if isinstance(dirs, list) and version is not None and version < _SPEC_DIRS_SINCE:
        built_in = dirs == spec_dirs()
        yield problem(
            "info" if built_in else "warning",
            _SPEC_DIRS,
            f"podman {version[0]}.{version[1]} does not look at cdi_spec_dirs (5.5 does); it has /etc/cdi and"
            " /var/run/cdi built in",
        )
    runtimes = lookup(document.data, ("engine", "runtimes")) or {}
    for name, programs in runtimes.items():
        if isinstance(programs, list) and all(exists(request.host, str(one)) is False for one in programs):
            yield problem(
                "warning",
                ("engine", "runtimes", name),
                f"runtime {name}: there is none of {', '.join(map(str, programs))}",
            )
    devices = lookup(document.data, ("containers", "devices"))
    if isinstance(devices, list) and any(isinstance(one, str) and "nvidia" in one for one in devices):
        yield problem("warning", ("containers", "devices"), "devices gives every container a GPU")
    used = lookup(document.data, _HOOKS)
    for directory in used if isinstance(used, list) else HOOK_DIRECTORIES[:1]:
        for name in _nvidia_hooks(request.host, directory):
            yield Problem(
                "info",
                f"{name} runs NVIDIA's hook for every container; with CDI it is not needed",
                name,
            )


def _nvidia_hooks(host: Host, directory: str) -> Iterator[str]:
    try:
        for name in host.listdir(directory) or ():
            if name.endswith(".json") and "nvidia-container-" in (host.text(f"{directory}/{name}") or ""):
                yield f"{directory}/{name}"
    except Unknown:
        return


PODMAN = Engine(
    name="podman",
    title="podman",
    keys=KEYS,
    presets={"rootful": _rootful, "rootless": _cdi, "hardened": _hardened, "cdi": _cdi},
    place=_place,
    problems=_problems,
    restart_says="nothing to restart: podman reads it whenever it runs",
)
