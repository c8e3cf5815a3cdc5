# SPDX-License-Identifier: Apache-2.0
"""Keeping the specs in a directory as the host is: written only when they differ, and in one step."""

from __future__ import annotations

import importlib
import os
import posixpath
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gpuiso.cdi.cache import spec_files
from gpuiso.cdi.emit import to_yaml
from gpuiso.cdi.generate import Generated, Options, generate, present_modes
from gpuiso.cdi.names import qualified_name
from gpuiso.cdi.spec import Spec
from gpuiso.cdi.validate import read_spec
from gpuiso.errors import BadInput, FailedAndUndone, NotPermitted, NotSupported, Unknown
from gpuiso.host.protocol import Host
from gpuiso.oci.files import replace_file

__all__ = ["DEFAULT_DIRECTORY", "Refreshed", "refresh", "uevents", "watch", "write_spec"]

DEFAULT_DIRECTORY = "/var/run/cdi"

# The subsystems whose uevents may change a spec; a driver's own come as "module".
_SUBSYSTEMS = frozenset({"drm", "kfd", "module", "pci"})


@dataclass(frozen=True, slots=True)
class Refreshed:
    """``changed`` tells whether the file had to be written."""

    file: str
    changed: bool
    generated: Generated


def refresh(host: Host, options: Options, directory: str = DEFAULT_DIRECTORY) -> tuple[Refreshed, ...]:
    """Bring the specs of ``directory`` up to date: one file for each vendor whose GPUs are here.

    The files are called nvidia.yaml, amd.yaml and intel.yaml. NVIDIA's own refresh service writes the first
    name too, so that one takes the place of the other and no device is defined twice.

    :raises NotSupported: no GPU with a loaded driver.
    :raises BadInput: another file of the directory defines the same devices.
    :raises NotPermitted: the directory cannot be written.
    """
    modes = present_modes(host) if options.mode == "auto" else (options.mode,)
    if not modes:
        raise NotSupported("no GPU here whose driver is loaded", hint="gpuiso doctor tells why")
    done = []
    for mode in modes:
        generated = generate(host, replace(options, mode=mode))
        file = posixpath.join(directory, file_name(generated.spec.kind))
        done.append(Refreshed(file, write_spec(host, file, generated.spec), generated))
    return tuple(done)


def file_name(kind: str) -> str:
    """``nvidia.yaml`` of ``nvidia.com/gpu``; any other class, or a longer vendor, keeps its place in the
    name.
    """
    vendor, _, device_class = kind.partition("/")
    short = vendor.removesuffix(".com")
    return f"{short}.yaml" if device_class == "gpu" else f"{short}-{device_class}.yaml"


def write_spec(host: Host, file: str, spec: Spec) -> bool:
    """Write ``spec`` as YAML unless ``file`` says the same already. Returns whether it was written.

    Raises as :func:`refresh`.
    """
    directory = posixpath.dirname(file) or "."
    wanted = {qualified_name(spec.kind, device.name) for device in spec.devices}
    for other in spec_files(host, directory):
        if other != file and (shared := wanted & _names_in(host, other)):
            raise BadInput(
                f"it defines {min(shared)} too; with {file} beside it, no container could have that device",
                file=other,
                hint=f"remove {other}",
            )
    text = to_yaml(spec).encode()
    if host.read(file) == text:
        return False
    make_directory(directory)
    replace_file(file, text)
    return True


def make_directory(path: str) -> None:
    """Make a directory that every engine may read, with its parents. Raises NotPermitted or FailedAndUndone."""
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
    except PermissionError as error:
        raise NotPermitted(f"{path}: not permitted to make it") from error
    except OSError as error:
        raise FailedAndUndone(f"{path}: cannot be made: {error.strerror}") from error


def watch(
    make_host: Callable[[], Host],
    options: Options,
    directory: str,
    events: Iterator[object],
) -> Iterator[tuple[Refreshed, ...] | NotSupported | Unknown]:
    """Refresh now and after each of ``events``; gives what was done, or why nothing could be (the driver is
    gone).
    """
    yield _attempt(make_host, options, directory)
    for _ in events:
        yield _attempt(make_host, options, directory)


def _attempt(
    make_host: Callable[[], Host], options: Options, directory: str
) -> tuple[Refreshed, ...] | NotSupported | Unknown:
    try:
        return refresh(make_host(), options, directory)
    except (NotSupported, Unknown) as error:
        return error


def uevents(interval: float, settle: float = 1.0) -> Generator[Literal["event", "interval"], None, None]:
    """Says ``event`` after kernel uevents that concern GPUs, and ``interval`` after so many seconds without
    one.

    MIG changes and nodes that a program makes send no uevent. After an event, ``settle`` seconds pass, so
    that a driver that makes many nodes is looked at once. Raises NotSupported without pyroute2.
    """
    import select
    import time

    try:
        socket_class = importlib.import_module("pyroute2.netlink.uevent").UeventSocket
    except ImportError as error:
        raise NotSupported("watching needs pyroute2", hint="pip install pyroute2") from error
    with socket_class() as socket:
        socket.bind()
        while True:
            deadline = time.monotonic() + interval
            why: Literal["event", "interval"] = "interval"
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([socket.fileno()], [], [], left)[0]:
                    break
                if any(concerns_gpus(message) for message in socket.get()):
                    time.sleep(settle)
                    why = "event"
                    break
            yield why


def concerns_gpus(message: dict[str, object]) -> bool:
    """Whether a uevent (a dictionary with SUBSYSTEM, DEVPATH, …) may change a spec."""
    subsystem = str(message.get("SUBSYSTEM", ""))
    return subsystem in _SUBSYSTEMS or "nvidia" in str(message.get("DEVPATH", ""))


def _names_in(host: Host, file: str) -> set[str]:
    try:
        spec, _ = read_spec(host.read(file) or b"")
    except Unknown:
        return set()
    return set() if spec is None else {qualified_name(spec.kind, device.name) for device in spec.devices}
