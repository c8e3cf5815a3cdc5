# SPDX-License-Identifier: Apache-2.0
"""What a spec must fulfil beyond its shape: the checks the reference library makes in code.

pkg/cdi/spec.go, device.go and container-edits.go of the reference at v1.1.0, which the container engines
embed. What it lets pass although it cannot be meant (a relative hook path, a timeout of 0) is for
:mod:`gpuiso.cdi.lint`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.cdi.names import kind_fault, name_fault
from gpuiso.cdi.spec import ContainerEdits, DeviceNode, Hook, IntelRdt, NetDevice, Spec
from gpuiso.cdi.version import version_fault

__all__ = ["HOOK_NAMES", "NODE_TYPES", "Fault", "Path", "faults"]

Path = tuple[str | int, ...]
Fault = tuple[Path, str]

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES = ("b", "c", "u", "p")
LONGEST_CLOS_ID = 4095


def faults(spec: Spec) -> Iterator[Fault]:
    """Every reason for which the reference would refuse ``spec``, as (path of the value, what is wrong)."""
    if (fault := version_fault(spec)) is not None:
        yield ("cdiVersion",), fault
    if (fault := kind_fault(spec.kind)) is not None:
        yield ("kind",), fault
    yield from _edit_faults(spec.container_edits, ("containerEdits",))
    if not spec.devices:
        yield ("devices",), "there is no device"
    seen: set[str] = set()
    for index, device in enumerate(spec.devices):
        path: Path = ("devices", index)
        if (fault := name_fault(device.name)) is not None:
            yield (*path, "name"), fault
        elif device.name in seen:
            yield (*path, "name"), f"device {device.name!r} is there twice"
        seen.add(device.name)
        if not device.container_edits:
            yield (*path, "containerEdits"), f"device {device.name!r} edits nothing"
        yield from _edit_faults(device.container_edits, (*path, "containerEdits"))


def _edit_faults(edits: ContainerEdits, path: Path) -> Iterator[Fault]:
    yield from _env_faults(edits.env, (*path, "env"))
    for index, node in enumerate(edits.device_nodes):
        yield from _node_faults(node, (*path, "deviceNodes", index))
    for index, hook in enumerate(edits.hooks):
        yield from _hook_faults(hook, (*path, "hooks", index))
    for index, mount in enumerate(edits.mounts):
        if not mount.host_path:
            yield (*path, "mounts", index, "hostPath"), "the host path of a mount is empty"
        if not mount.container_path:
            yield (*path, "mounts", index, "containerPath"), "the container path of a mount is empty"
    if edits.intel_rdt is not None:
        yield from _rdt_faults(edits.intel_rdt, (*path, "intelRdt"))
    yield from _net_faults(edits.net_devices, (*path, "netDevices"))


def _env_faults(env: tuple[str, ...], path: Path) -> Iterator[Fault]:
    for index, entry in enumerate(env):
        if entry.find("=") <= 0:
            yield (*path, index), f"{entry!r} is not NAME=VALUE"


def _node_faults(node: DeviceNode, path: Path) -> Iterator[Fault]:
    if not node.path:
        yield (*path, "path"), "the path of a device node is empty"
    if node.type and node.type not in NODE_TYPES:
        yield (*path, "type"), f"device node type {node.type!r} is not one of {', '.join(NODE_TYPES)}"
    if node.permissions.strip("rwm"):
        yield (*path, "permissions"), f"permissions {node.permissions!r} may hold only r, w and m"


def _hook_faults(hook: Hook, path: Path) -> Iterator[Fault]:
    if hook.hook_name not in HOOK_NAMES:
        yield (*path, "hookName"), f"hook name {hook.hook_name!r} is not one of {', '.join(HOOK_NAMES)}"
    if not hook.path:
        yield (*path, "path"), "the path of a hook is empty"
    yield from _env_faults(hook.env, (*path, "env"))


def _rdt_faults(rdt: IntelRdt, path: Path) -> Iterator[Fault]:
    clos = rdt.clos_id
    if clos == "/":
        return
    if clos in (".", "..") or "/" in clos or "\n" in clos or len(clos.encode()) > LONGEST_CLOS_ID:
        yield (*path, "closID"), f"closID {clos[:80]!r} is not a file name"


def _net_faults(devices: tuple[NetDevice, ...], path: Path) -> Iterator[Fault]:
    host_seen: set[str] = set()
    name_seen: set[str] = set()
    for index, device in enumerate(devices):
        for key, value, seen in (
            ("hostInterfaceName", device.host_interface_name, host_seen),
            ("name", device.name, name_seen),
        ):
            if not value:
                yield (*path, index, key), f"{key} is empty"
            elif value in seen:
                yield (*path, index, key), f"{key} {value!r} is there twice"
            seen.add(value)
