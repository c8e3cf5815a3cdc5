# SPDX-License-Identifier: Apache-2.0
"""The values of a CDI spec, field by field as specs-go/config.go of the reference declares them.

Absent and zero are one, as they are there: an empty string, 0 or an empty tuple means "not given". Only where
the reference keeps a pointer (``fileMode``, ``uid``, ``gid``, ``timeout``, ``schemata``, ``intelRdt``) is
None used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ContainerEdits", "Device", "DeviceNode", "Hook", "IntelRdt", "Mount", "NetDevice", "Spec"]


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """``permissions`` is any mix of r, w and m; empty means rwm. ``file_mode`` is the number, not its octal
    text.
    """

    path: str = ""
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class NetDevice:
    host_interface_name: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    host_path: str = ""
    container_path: str = ""
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """``timeout`` is in seconds."""

    hook_name: str = ""
    path: str = ""
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class IntelRdt:
    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self != _NO_EDITS

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """Both, ``other`` last; of two ``intelRdt`` the later one stands."""
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            net_devices=self.net_devices + other.net_devices,
            hooks=self.hooks + other.hooks,
            mounts=self.mounts + other.mounts,
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=self.additional_gids + other.additional_gids,
        )


_NO_EDITS = ContainerEdits()


@dataclass(frozen=True, slots=True)
class Device:
    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    container_edits: ContainerEdits = ContainerEdits()


@dataclass(frozen=True, slots=True)
class Spec:
    version: str = ""
    kind: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    container_edits: ContainerEdits = ContainerEdits()

    def all_edits(self) -> Iterator[ContainerEdits]:
        """The edits of every device, then those of the spec itself."""
        for device in self.devices:
            yield device.container_edits
        yield self.container_edits

    def to_document(self) -> dict[str, Any]:
        """The spec as JSON values: keys in the order of the reference, what is not given left out."""
        document: dict[str, Any] = {"cdiVersion": self.version, "kind": self.kind}
        if self.annotations:
            document["annotations"] = dict(self.annotations)
        document["devices"] = [_device_document(device) for device in self.devices]
        if self.container_edits:
            document["containerEdits"] = _edits_document(self.container_edits)
        return document


def _device_document(device: Device) -> dict[str, Any]:
    document: dict[str, Any] = {"name": device.name}
    if device.annotations:
        document["annotations"] = dict(device.annotations)
    document["containerEdits"] = _edits_document(device.container_edits)
    return document


def _edits_document(edits: ContainerEdits) -> dict[str, Any]:
    rdt = edits.intel_rdt
    return _given(
        env=list(edits.env),
        deviceNodes=[_node_document(node) for node in edits.device_nodes],
        netDevices=[
            {"hostInterfaceName": device.host_interface_name, "name": device.name} for device in edits.net_devices
        ],
        hooks=[_hook_document(hook) for hook in edits.hooks],
        mounts=[_mount_document(mount) for mount in edits.mounts],
        intelRdt=None if rdt is None else _rdt_with_empty_schemata(rdt),
        additionalGids=list(edits.additional_gids),
    )


def _node_document(node: DeviceNode) -> dict[str, Any]:
    return {"path": node.path} | _given(
        hostPath=node.host_path,
        type=node.type,
        major=node.major or None,
        minor=node.minor or None,
        fileMode=node.file_mode,
        permissions=node.permissions,
        uid=node.uid,
        gid=node.gid,
    )


def _hook_document(hook: Hook) -> dict[str, Any]:
    return {"hookName": hook.hook_name, "path": hook.path} | _given(
        args=list(hook.args), env=list(hook.env), timeout=hook.timeout
    )


def _mount_document(mount: Mount) -> dict[str, Any]:
    return {"hostPath": mount.host_path, "containerPath": mount.container_path} | _given(
        type=mount.type, options=list(mount.options)
    )


def _rdt_with_empty_schemata(rdt: IntelRdt) -> dict[str, Any]:
    # An empty list is not nothing: it needs version 1.1.0.
    return ({"schemata": []} if rdt.schemata == () else {}) | rdt_document(rdt)


def rdt_document(rdt: IntelRdt) -> dict[str, Any]:
    """``intelRdt`` as an OCI config has it; a CDI spec names its members alike."""
    return _given(
        closID=rdt.clos_id,
        l3CacheSchema=rdt.l3_cache_schema,
        memBwSchema=rdt.mem_bw_schema,
        schemata=list(rdt.schemata or ()),
        enableMonitoring=rdt.enable_monitoring or None,
    )


def _given(**values: Any) -> dict[str, Any]:
    """``values`` without those that say "not given": None, empty text and empty lists (0 is a value)."""
    return {key: value for key, value in values.items() if value is not None and value not in ("", [])}
