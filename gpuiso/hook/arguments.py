# SPDX-License-Identifier: Apache-2.0
"""The hook's command line, which stands in a CDI spec or a hook definition: ``gpuiso-hook STAGE [OPTION...]``.

::

    createContainer  --link TARGET::PATH          a symbolic link (again for more)
                     --library DIR=NAME,NAME…     libraries for ld.so.cache (again for more)
                     --host-driver-version V      prefer the image's CUDA compatibility libraries if they are newer
                     --cuda-compat-root DIR       where those are (/usr/local/cuda/compat)
                     --application-profile        tell EGL which GPUs there are
                     --no-node-modification       keep the driver's library from making device nodes
                     --chmod MODE:PATH            a mode, in octal digits (again for more)
    createRuntime    --policy NAME                the container's device rules are this policy of policy.d
    prestart         --gpus LIST                  of its GPUs, the container may use these only
                     --gpu-max "QUOTA PERIOD"     its share of GPU time
    poststop
"""

from __future__ import annotations

from gpuiso.hook.errors import HookError

__all__ = ["STAGES", "ContainerWork", "RuntimeWork", "container_work", "no_work", "runtime_work"]

STAGES = ("createRuntime", "prestart", "createContainer", "poststop")

_CONTAINER = ("--link", "--library", "--host-driver-version", "--cuda-compat-root", "--chmod")
_CONTAINER_FLAGS = ("--application-profile", "--no-node-modification")
_RUNTIME = ("--policy", "--gpus", "--gpu-max")


class ContainerWork:
    """What createContainer is to do."""

    def __init__(self) -> None:
        self.links: list[tuple[str, str]] = []
        self.libraries: list[tuple[str, list[str]]] = []
        self.modes: list[tuple[int, str]] = []
        self.driver_version: str | None = None
        self.compat_root = "/usr/local/cuda/compat"
        self.profile = False
        self.hide_modification = False


class RuntimeWork:
    """What createRuntime is to do, as far as the command line says it."""

    def __init__(self) -> None:
        self.policy: str | None = None
        self.gpus: str | None = None
        self.gpu_max: str | None = None


def container_work(arguments: list[str]) -> ContainerWork:
    """:raises HookError: an option is unknown or has no sense."""
    work = ContainerWork()
    for name, value in _options(arguments, _CONTAINER, _CONTAINER_FLAGS):
        if name == "--link":
            target, path = _pair(name, value, "::", "TARGET::PATH")
            work.links.append((target, path))
        elif name == "--library":
            directory, names = _pair(name, value, "=", "DIR=NAME,NAME")
            work.libraries.append((_absolute(name, directory), [_library(one) for one in names.split(",")]))
        elif name == "--chmod":
            digits, path = _pair(name, value, ":", "MODE:PATH")
            work.modes.append((_mode(digits), path))
        elif name == "--host-driver-version":
            work.driver_version = value
        elif name == "--cuda-compat-root":
            work.compat_root = _absolute(name, value)
        elif name == "--application-profile":
            work.profile = True
        else:
            work.hide_modification = True
    return work


def runtime_work(arguments: list[str]) -> RuntimeWork:
    """:raises HookError: an option is unknown."""
    work = RuntimeWork()
    for name, value in _options(arguments, _RUNTIME, ()):
        if name == "--policy":
            work.policy = value
        elif name == "--gpus":
            work.gpus = value
        else:
            work.gpu_max = value
    return work


def no_work(arguments: list[str]) -> None:
    """:raises HookError: a stage that takes no options was given one."""
    for _ in _options(arguments, (), ()):
        pass


def _options(arguments: list[str], valued: tuple[str, ...], flags: tuple[str, ...]) -> list[tuple[str, str]]:
    """Options with their values, ``--name value`` or ``--name=value``."""
    found = []
    index = 0
    while index < len(arguments):
        name, equals, value = arguments[index].partition("=")
        index += 1
        if name in flags and not equals:
            found.append((name, ""))
            continue
        if name not in valued:
            known = ", ".join((*valued, *flags)) or "none"
            raise HookError(f"unknown option {arguments[index - 1]!r}; this stage has {known}")
        if not equals:
            if index == len(arguments):
                raise HookError(f"{name} needs a value")
            value = arguments[index]
            index += 1
        found.append((name, value))
    return found


def _pair(name: str, value: str, separator: str, form: str) -> tuple[str, str]:
    first, found, second = value.partition(separator)
    if not (first and found and second):
        raise HookError(f"{name} {value!r} is not of the form {form}")
    return first, second


def _absolute(name: str, path: str) -> str:
    if not path.startswith("/"):
        raise HookError(f"{name} {path!r} is no absolute path")
    return path.rstrip("/") or "/"


def _library(name: str) -> str:
    if not name or "/" in name or "\0" in name:
        raise HookError(f"--library: {name!r} is no file name")
    return name


def _mode(digits: str) -> int:
    if not digits or len(digits) > 4 or digits.strip("01234567"):
        raise HookError(f"--chmod: {digits!r} is no mode in octal digits")
    return int(digits, 8)
