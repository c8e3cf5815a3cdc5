# SPDX-License-Identifier: Apache-2.0
"""config.toml of NVIDIA's container toolkit: every key of its api/config/v1 (release 1.20), with its default."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.errors import Unknown, UsageError
from gpuiso.runtimes.engine import Engine, Place, Problem, Request, Setting, exists, spec_dirs
from gpuiso.runtimes.formats import Document, Path, decode, lookup
from gpuiso.runtimes.formats.toml import TomlDocument
from gpuiso.runtimes.keys import Key, KeyTable, absolute, each, matching, one_of

__all__ = ["CONFIG", "TOOLKIT"]

CONFIG = "/etc/nvidia-container-runtime/config.toml"

_CLI, _RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"
_LDCONFIG: Path = (_CLI, "ldconfig")
_NO_CGROUPS: Path = (_CLI, "no-cgroups")
_ENVVAR: Path = ("accept-nvidia-visible-devices-envvar-when-unprivileged",)
_MOUNTS: Path = ("accept-nvidia-visible-devices-as-volume-mounts",)
_MODE: Path = (_RUNTIME, "mode")
_CAPABILITIES = frozenset({"all", "compat32", "compute", "display", "graphics", "ngx", "utility", "video"})
_FLAGS = (
    *("enable-explicit-driver-libraries", "disable-nvsandboxutils", "enable-coherent-annotations"),
    *("disable-multiple-csv-devices", "no-additional-gids-for-device-nodes", "disable-ipc-discoverer"),
)
_LEVELS = ("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")
#: Sockets of engines that run as root and whose containers go through the toolkit.
_ROOT_ENGINES = ("/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock")


def _capabilities(value: str) -> str | None:
    unknown = sorted(set(filter(None, value.split(","))) - _CAPABILITIES)
    return f"{unknown[0]!r} is no capability; there are {', '.join(sorted(_CAPABILITIES))}" if unknown else None


def _key(path: str, *rest: object, **named: object) -> Key:
    return Key(tuple(path.split("/")), *rest, **named)  # type: ignore[arg-type]


_FEATURES = {
    "allow-cuda-compat-libs-from-container": "run with the CUDA compatibility libraries of the image without asking",
    "allow-ldconfig-from-container": "let the container's own ldconfig be run: it is the image's program",
    "allow-unknown-oci-spec-fields": "accept a config.json with fields that the toolkit does not know",
    "disable-cuda-compat-lib-hook": "do not offer the image's CUDA compatibility libraries",
    "disable-imex-channel-creation": "do not make nodes of IMEX channels",
    "ignore-imex-channel-requests": "ignore NVIDIA_IMEX_CHANNELS",
    "no-additional-gids-for-device-nodes": "leave out additionalGids, which older engines refuse to read (CDI 0.7.0)",
}

KEYS = KeyTable(
    (
        _key("disable-require", "boolean", "ignore what an image requires (NVIDIA_REQUIRE_*)", False),
        _key("swarm-resource", "text", "variables that select devices before NVIDIA_VISIBLE_DEVICES does", ""),
        Key(
            _ENVVAR,
            "boolean",
            "NVIDIA_VISIBLE_DEVICES counts in unprivileged containers; false: who builds an image takes no GPU",
            True,
        ),
        Key(_MOUNTS, "boolean", "mounts of /dev/null below /var/run/nvidia-container-devices select devices", False),
        _key(
            "supported-driver-capabilities",
            "text",
            "what NVIDIA_DRIVER_CAPABILITIES may ask for (mode legacy)",
            "compat32,compute,display,graphics,ngx,utility,video",
            _capabilities,
        ),
        _key("nvidia-container-cli/root", "text", "where the driver is installed", "", matching(r"(/.*)?", "a path")),
        _key("nvidia-container-cli/path", "text", "the program nvidia-container-cli", ""),
        _key(
            "nvidia-container-cli/environment",
            "list",
            "environment of nvidia-container-cli",
            None,
            each(matching(r"[^=]+=.*", "NAME=VALUE")),
        ),
        _key("nvidia-container-cli/debug", "text", "log of nvidia-container-cli", ""),
        _key("nvidia-container-cli/ldcache", "text", "the library cache to search", ""),
        _key("nvidia-container-cli/load-kmods", "boolean", "load the kernel modules and make the nodes first", True),
        _key("nvidia-container-cli/no-pivot", "boolean", "do not pivot_root, for a root on a ramdisk", False),
        Key(
            _NO_CGROUPS,
            "boolean",
            "write no device rules; only root may, so rootless engines need true and engines of root need false",
            False,
        ),
        _key(
            "nvidia-container-cli/user",
            "text",
            "user and group that the unprivileged part runs as",
            "",
            matching(r"([^:\s]+:[^:\s]+)?", "USER:GROUP"),
        ),
        _key("nvidia-container-cli/ldconfig", "text", "ldconfig to run; with @ it is the host's", "@/sbin/ldconfig"),
        _key("nvidia-container-runtime/debug", "text", "log of the runtime", "/dev/null"),
        _key("nvidia-container-runtime/log-level", "text", "how much is logged", "info", one_of(*_LEVELS)),
        _key("nvidia-container-runtime/runtimes", "list", "runtimes to hand over to, the first that there is counts"),
        Key(
            _MODE,
            "text",
            "how devices are added: cdi and jit-cdi through the OCI config, legacy through a hook behind the engine",
            "auto",
            one_of("auto", "legacy", "cdi", "csv", "jit-cdi"),
        ),
        _key(
            "nvidia-container-runtime/modes/csv/mount-spec-path",
            "text",
            "lists of files to mount (Tegra)",
            "/etc/nvidia-container-runtime/host-files-for-container.d",
            absolute,
        ),
        _key("nvidia-container-runtime/modes/csv/compat-container-root", "text", "CUDA compatibility libraries (Orin)"),
        _key(
            "nvidia-container-runtime/modes/cdi/spec-dirs",
            "list",
            "directories of CDI specs, the last wins",
            None,
            each(absolute),
        ),
        _key(
            "nvidia-container-runtime/modes/cdi/default-kind",
            "text",
            "kind of a device that is named without one",
            "nvidia.com/gpu",
            matching(r"[A-Za-z][\w.-]*/[A-Za-z][\w.-]*", "VENDOR/CLASS"),
        ),
        _key("nvidia-container-runtime/modes/cdi/annotation-prefixes", "list", "annotations that name CDI devices"),
        _key(
            "nvidia-container-runtime/modes/jit-cdi/nvcdi-feature-flags",
            "list",
            "switches of the CDI generator",
            None,
            each(one_of(*_FLAGS)),
        ),
        _key(
            "nvidia-container-runtime/modes/jit-cdi/nvcdi-disable-hooks", "list", "CDI hooks to leave out (since 1.20)"
        ),
        _key(
            "nvidia-container-runtime/modes/legacy/cuda-compat-mode",
            "text",
            "how CUDA compatibility libraries are offered",
            "ldconfig",
            one_of("ldconfig", "mount", "hook", "disabled"),
        ),
        _key("nvidia-container-runtime-hook/path", "text", "the hook program", "nvidia-container-runtime-hook"),
        _key("nvidia-container-runtime-hook/skip-mode-detection", "boolean", "the hook acts in every mode", False),
        _key("nvidia-ctk/path", "text", "the program nvidia-ctk, also used as CDI hook", "nvidia-ctk"),
        *(Key(("features", name), "boolean", says, False) for name, says in _FEATURES.items()),
    )
)


def _place(request: Request) -> Place:
    file = request.file or CONFIG
    if request.file is None and request.preset == "rootless":
        if request.config_home is None:
            raise UsageError("--preset rootless is a user's own file: name it with --file")
        file = f"{request.config_home}/nvidia-container-runtime/config.toml"
    return Place(file, TomlDocument)


def _rootful(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(_NO_CGROUPS, False)
    yield Setting(_MODE, "auto")


def _rootless(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(_NO_CGROUPS, True)
    yield Setting(_MODE, "auto")


def _hardened(request: Request, place: Place) -> Iterator[Setting]:
    """The engine says which GPUs, by CDI name; nothing inside an image or a mount does."""
    yield Setting(_ENVVAR, False)
    yield Setting(_MOUNTS, False)
    yield Setting(_NO_CGROUPS, False)
    if not _hosts_own(request, place):
        yield Setting(_LDCONFIG, "@/sbin/ldconfig")
    yield Setting(_MODE, "cdi")
    yield Setting((_RUNTIME, "modes", "cdi", "spec-dirs"), spec_dirs())
    yield Setting(("features", "allow-ldconfig-from-container"), False)
    yield Setting(("features", "allow-cuda-compat-libs-from-container"), False)
    yield Setting(("features", "ignore-imex-channel-requests"), True)


def _hosts_own(request: Request, place: Place) -> bool:
    """Whether ldconfig is the host's: Debian's has a name of its own, which stays. Unset it is."""
    data = request.host.read(place.file)
    ldconfig = None if data is None else lookup(TomlDocument(decode(data, place.file), place.file).data, _LDCONFIG)
    return ldconfig is None or (isinstance(ldconfig, str) and ldconfig.startswith("@"))


def _cdi(request: Request, place: Place) -> Iterator[Setting]:
    yield Setting(_MODE, "cdi")
    yield Setting((_RUNTIME, "modes", "cdi", "spec-dirs"), spec_dirs())
    yield Setting((_RUNTIME, "modes", "cdi", "default-kind"), "nvidia.com/gpu")


def _problems(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    def value(path: Path) -> object:
        found = lookup(document.data, path)
        key = KEYS.find(path)
        return found if found is not None or key is None else key.default

    def problem(severity: str, path: Path, message: str) -> Problem:
        return Problem(severity, message, place.file, document.line(path))  # type: ignore[arg-type]

    mode = value(_MODE)
    if value(_NO_CGROUPS) is True and place.file == CONFIG:
        engine = next((each for each in _ROOT_ENGINES if exists(request.host, each)), None)
        if engine is not None:
            yield problem(
                "error",
                _NO_CGROUPS,
                f"no-cgroups = true, but {engine} is an engine of root that reads this file: in mode legacy its"
                " containers get nodes that they may not open (rootless engines have a file of their own below"
                " ~/.config)",
            )
    ldconfig = value(_LDCONFIG)
    if isinstance(ldconfig, str) and not ldconfig.startswith("@"):
        allowed = value(("features", "allow-ldconfig-from-container")) is True
        yield problem(
            "warning" if allowed else "error",
            _LDCONFIG,
            f"ldconfig = {ldconfig!r} is a program of the container, run with the runtime's privileges"
            if allowed
            else f"ldconfig = {ldconfig!r} is refused by the toolkit: put @ in front for the host's, or set"
            " features.allow-ldconfig-from-container",
        )
    if lookup(document.data, (_RUNTIME, "runtimes")) == []:
        yield problem("error", (_RUNTIME, "runtimes"), "runtimes = [] leaves the runtime nothing to hand over to")
    if value(_ENVVAR) is False and value(_MOUNTS) is False and mode == "legacy":
        yield problem("warning", _MODE, "mode legacy, and neither variables nor mounts count: only privileged"
                      " containers get GPUs")  # fmt: skip
    if value(_MOUNTS) is True and value(_ENVVAR) is True:
        yield problem(
            "info", _MOUNTS, "mounts select devices, and so does the variable: set the other to false to close it"
        )
    if mode == "legacy" and value(_NO_CGROUPS) is False and _unified(request):
        yield problem(
            "warning", _MODE, "mode legacy writes device rules behind systemd: containers lose their GPUs when it"
            " writes its own; auto and cdi do not"
        )  # fmt: skip
    if value(("nvidia-container-runtime-hook", "skip-mode-detection")) is True and mode in ("cdi", "jit-cdi"):
        yield problem(
            "warning",
            ("nvidia-container-runtime-hook", "skip-mode-detection"),
            f"skip-mode-detection = true with mode {mode}: the hook adds devices a second time",
        )
    yield from _missing(request, place, document)


def _missing(request: Request, place: Place, document: Document) -> Iterator[Problem]:
    """Paths that are named and are not there."""
    paths: list[Path] = [
        (_CLI, "root"),
        (_CLI, "path"),
        ("nvidia-container-runtime-hook", "path"),
        ("nvidia-ctk", "path"),
    ]
    if lookup(document.data, _MODE) == "csv":
        paths.append((_RUNTIME, "modes", "csv", "mount-spec-path"))
    for path in paths:
        named = lookup(document.data, path)
        if isinstance(named, str) and named.startswith("/") and exists(request.host, named) is False:
            yield Problem("warning", f"{path[-1]} = {named!r}: there is no such file", place.file, document.line(path))


def _unified(request: Request) -> bool:
    try:
        return request.host.systemd and request.host.cgroup_mode == "unified"
    except Unknown:
        return False


TOOLKIT = Engine(
    name="nvidia-container-runtime",
    title="NVIDIA's container toolkit",
    keys=KEYS,
    presets={"rootful": _rootful, "rootless": _rootless, "hardened": _hardened, "cdi": _cdi},
    place=_place,
    problems=_problems,
    restart_says="nothing to restart: the file is read whenever a container starts",
    unknown_is="warning",
)
