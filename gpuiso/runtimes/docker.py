# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon.json (https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuiso.errors import UsageError
from gpuiso.runtimes.engine import (
    Engine,
    Place,
    Problem,
    Request,
    Setting,
    exists,
    nvidia_runtime,
    release,
)
from gpuiso.runtimes.formats import Document, Path, lookup
from gpuiso.runtimes.formats.json import JsonDocument
from gpuiso.runtimes.keys import Key, KeyTable, absolute, each, matching, one_of

__all__ = ["DOCKER"]

CONFIG = "/etc/docker/daemon.json"
#: Runtimes that Docker defines itself (moby, daemon/runtime_unix.go).
_BUILT_IN = ("runc", "io.containerd.runc.v2")
_CDI: Path = ("features", "cdi")
_SPEC_DIRS: Path = ("cdi-spec-dirs",)
#: Docker 25 brought CDI as an experiment (https://github.com/moby/moby/pull/45134).
_CDI_SINCE = (25, 0)

KEYS = KeyTable(
    (
        Key(("runtimes", "*", "path"), "text", "the runtime's program; a name is looked for in dockerd's PATH"),
        Key(("runtimes", "*", "runtimeArgs"), "list", "arguments of the runtime"),
        Key(("runtimes", "*", "args"), "list", "arguments of the runtime, as NVIDIA's tool writes them"),
        Key(("runtimes", "*", "runtimeType"), "text", "a containerd shim instead of a program (since 23)"),
        Key(("default-runtime",), "text", "the runtime of containers that ask for none", "runc"),
        Key(
            _CDI,
            "boolean",
            "docker run --device VENDOR/CLASS=NAME, rules kept by the engine (on by default since 28.2)",
        ),
        Key(("features", "*"), "boolean", "a switch of the daemon"),
        Key(_SPEC_DIRS, "list", "directories of CDI specs, the last wins (since 25)", None, each(absolute)),
        Key(
            ("exec-opts",),
            "list",
            "options of the runtime, as native.cgroupdriver=systemd",
            None,
            each(matching(r"[^=]+=.+", "NAME=VALUE")),
        ),
        Key(("cgroup-parent",), "text", "the cgroup or slice above all containers"),
        Key(("default-cgroupns-mode",), "text", "cgroup namespace of containers", "private", one_of("private", "host")),
        Key(("seccomp-profile",), "text", "the default seccomp profile, or unconfined (see gpuiso hook seccomp)"),
        Key(("no-new-privileges",), "boolean", "set-user-ID programs gain nothing in containers", False),
        Key(("userns-remap",), "text", "run containers in a user namespace of this user"),
        Key(("live-restore",), "boolean", "containers live on while dockerd restarts", False),
        Key(
            ("node-generic-resources",),
            "list",
            "what a swarm may place tasks by, as NVIDIA-GPU=GPU-UUID",
            None,
            each(matching(r"[^=]+=.+", "KIND=NAME")),
        ),
        Key(("default-shm-size",), "text", "size of /dev/shm", "64M", matching(r"\d+[bkmgBKMG]?", "a size")),
    )
)


def _place(request: Request) -> Place:
    file = request.file or CONFIG
    if request.file is None and request.preset == "rootless":
        if request.config_home is None:
            raise UsageError("--preset rootless is a user's own file: name it with --file")
        file = f"{request.config_home}/docker/daemon.json"
    return Place(file, JsonDocument, initial="{}\n")


def _rootful(request: Request, place: Place) -> Iterator[Setting]:
    path, found = nvidia_runtime(request.host)
    yield Setting(("runtimes", "nvidia", "path"), path if found else "nvidia-container-runtime")
    if _knows_cdi(request) is not False:
        yield Setting(_CDI, True)


def _cdi(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(_CDI, True)


def _hardened(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(_CDI, True)
    yield Setting(("default-runtime",), "runc")


def _knows_cdi(request: Request) -> bool | None:
    version = release(request.host, "dockerd", "--version")
    return None if version is None else version >= _CDI_SINCE


def _problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    data = document.data
    for path in (_CDI, _SPEC_DIRS):
        if lookup(data, path) and _knows_cdi(request) is False:
            version = release(request.host, "dockerd", "--version") or (0, 0)
            effect = "does not start with a key that it does not know" if path == _SPEC_DIRS else "ignores it"
            yield Problem(
                "error",
                f"{'.'.join(path)}: Docker {version[0]}.{version[1]} has no CDI (25 has) and {effect}",
                place.file,
                document.line(path),
            )
    runtimes = data.get("runtimes")
    names = list(runtimes) if isinstance(runtimes, dict) else []
    default = data.get("default-runtime")
    if isinstance(default, str) and default not in (*names, *_BUILT_IN) and not default.startswith("io.containerd."):
        yield Problem(
            "error",
            f"default-runtime is {default!r}, which runtimes does not define: dockerd does not start",
            place.file,
            document.line(("default-runtime",)),
        )
    if default == "nvidia" and default in names:
        yield Problem(
            "info",
            "default-runtime is nvidia: the NVIDIA_VISIBLE_DEVICES of any image takes GPUs",
            place.file,
            document.line(("default-runtime",)),
        )
    for name in names:
        yield from _runtime_problems(request, place, document, name)
    yield from _option_problems(request, place, document)


def _runtime_problems(request: Request, place: Place, document: Document, name: str) -> Iterator[Problem]:
    runtime = document.data["runtimes"][name]
    line = document.line(("runtimes", name))
    if name in _BUILT_IN[:1]:
        yield Problem("error", f"runtimes.{name} is Docker's own and may not be defined", place.file, line)
    if not isinstance(runtime, dict) or not (runtime.get("path") or runtime.get("runtimeType")):
        yield Problem("error", f"runtimes.{name} has neither path nor runtimeType", place.file, line)
        return
    if runtime.get("path") and runtime.get("runtimeType"):
        yield Problem("error", f"runtimes.{name} has both path and runtimeType", place.file, line)
    path = runtime.get("path")
    if isinstance(path, str) and path.startswith("/") and exists(request.host, path) is False:
        yield Problem("warning", f"runtimes.{name}.path is {path}: there is no such file", place.file, line)
    if path == "nvidia-container-runtime" and nvidia_runtime(request.host)[1] is False:
        yield Problem("warning", f"runtimes.{name}.path is {path}, which is not installed", place.file, line)


def _option_problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    options = document.data.get("exec-opts")
    if isinstance(options, list):
        drivers = [one for one in options if isinstance(one, str) and one.startswith("native.cgroupdriver=")]
        wrong = [one for one in drivers if not re.fullmatch(r"native\.cgroupdriver=(systemd|cgroupfs)", one)]
        if wrong:
            line = document.line(("exec-opts",))
            yield Problem("error", f"exec-opts: {wrong[0]}: the driver is systemd or cgroupfs", place.file, line)
    profile = document.data.get("seccomp-profile")
    if isinstance(profile, str) and profile.startswith("/") and exists(request.host, profile) is False:
        line = document.line(("seccomp-profile",))
        yield Problem("error", f"seccomp-profile is {profile}: there is no such file", place.file, line)


DOCKER = Engine(
    name="docker",
    title="Docker",
    keys=KEYS,
    presets={"rootful": _rootful, "rootless": _cdi, "hardened": _hardened, "cdi": _cdi},
    place=_place,
    problems=_problems,
    services=("docker.service",),
    restart_says="containers stop unless live-restore is true",
    user_service="docker.service",
    check=lambda file: ("dockerd", "--validate", f"--config-file={file}"),
)
