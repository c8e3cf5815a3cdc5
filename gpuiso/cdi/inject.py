# SPDX-License-Identifier: Apache-2.0
"""Injecting CDI devices into an OCI config, with the result of the reference library (ContainerEdits.Apply,
v1.1.0).

The spec-wide edits of a file come once, before the first of its devices; then all edits are applied kind by
kind: env, device nodes, net devices, mounts, hooks, intelRdt, additional groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuiso.cdi.cache import Cache
from gpuiso.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount, rdt_document
from gpuiso.errors import BadInput, NotFound, Unknown
from gpuiso.host.protocol import Host
from gpuiso.oci.config import OciConfig

__all__ = ["apply_edits", "inject", "merged_edits", "unresolved"]


def unresolved(cache: Cache, names: Iterable[str]) -> tuple[str, ...]:
    """Those of ``names`` that no spec defines."""
    return tuple(name for name in names if name not in cache.devices)


def merged_edits(cache: Cache, names: Iterable[str]) -> ContainerEdits:
    """The edits that make ``names`` usable. Raises NotFound that lists every name no spec defines."""
    wanted = tuple(names)
    if missing := unresolved(cache, wanted):
        raise NotFound(
            f"unresolvable CDI devices: {', '.join(missing)}",
            hint=f"gpuiso cdi list shows what {' and '.join(cache.directories)} define",
        )
    edits = ContainerEdits()
    opened: set[str] = set()
    for name in wanted:
        found = cache.devices[name]
        if found.file.path not in opened:
            opened.add(found.file.path)
            edits += found.file.spec.container_edits
        edits += found.device.container_edits
    return edits


def inject(host: Host, cache: Cache, config: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """``config`` with the devices ``names`` injected; ``config`` itself is left as it is.

    Raises NotFound for names that no spec defines or nodes that the host lacks, and BadInput where a spec
    contradicts the host.
    """
    return apply_edits(host, merged_edits(cache, names), config)


def apply_edits(host: Host, edits: ContainerEdits, config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with ``edits`` applied. ``host`` is asked for the device nodes. Raises as :func:`inject`."""
    oci = OciConfig(config)
    for entry in edits.env:
        oci.set_env(entry)
    for node in edits.device_nodes:
        device = oci_device(host, node, oci.user)
        oci.set_device(device)
        if device["type"] in ("b", "c"):
            oci.allow_device(device["type"], device["major"], device["minor"], node.permissions or "rwm")
    for net_device in edits.net_devices:
        oci.set_net_device(net_device.host_interface_name, net_device.name)
    for mount in edits.mounts:
        oci.set_mount(_oci_mount(mount))
    if edits.mounts:
        oci.sort_mounts()
    for hook in edits.hooks:
        oci.add_hook(hook.hook_name, _oci_hook(hook))
    if edits.intel_rdt is not None:
        oci.set_intel_rdt(rdt_document(edits.intel_rdt))
    for gid in edits.additional_gids:
        if gid:
            oci.add_gid(gid)
    return oci.finish()


def oci_device(host: Host, node: DeviceNode, user: tuple[int, int] | None) -> dict[str, Any]:
    """The ``linux.devices`` row of ``node``: what the spec leaves out is taken from the node on the host.

    A major of 0 means "as on the host", and the minor then is the host's too. ``user`` owns the node in the
    container unless the spec says otherwise or it is root. Raises NotFound if the host has no such node and
    the spec does not say enough without it, BadInput if the types differ.
    """
    actual = _host_node(host, node)
    kind, major, minor, mode = node.type, node.major, node.minor, node.file_mode
    if actual is not None:
        if mode is None:
            mode = actual.mode
        if not _says_enough(node):
            if kind and kind != actual.type:
                raise BadInput(
                    f"CDI device node {node.path}: the spec says type {kind!r}, "
                    f"{node.host_path or node.path} is of type {actual.type!r}"
                )
            kind = actual.type
            if not major:
                major, minor = actual.major or 0, actual.minor or 0
    device: dict[str, Any] = {"path": node.path, "type": kind, "major": major, "minor": minor}
    uid, gid = user or (0, 0)
    for key, value in (
        ("fileMode", mode),
        ("uid", node.uid if node.uid is not None else uid or None),
        ("gid", node.gid if node.gid is not None else gid or None),
    ):
        if value is not None:
            device[key] = value
    return device


def _says_enough(node: DeviceNode) -> bool:
    return bool(node.type) and (node.major != 0 or node.type == "p")


def _host_node(host: Host, node: DeviceNode) -> Any:
    path = node.host_path or node.path
    why = "it does not exist"
    try:
        actual = host.lstat(path)
    except Unknown as error:
        actual, why = None, error.why
    if actual is not None and actual.type not in ("b", "c", "p"):
        actual, why = None, "it is not a device node"
    if actual is None and not _says_enough(node):
        raise NotFound(f"CDI device node {path}: {why}", hint="load the driver, or regenerate the CDI spec")
    return actual


def _oci_mount(mount: Mount) -> dict[str, Any]:
    row: dict[str, Any] = {"destination": mount.container_path}
    if mount.type:
        row["type"] = mount.type
    row["source"] = mount.host_path
    if mount.options:
        row["options"] = list(mount.options)
    return row


def _oci_hook(hook: Hook) -> dict[str, Any]:
    row: dict[str, Any] = {"path": hook.path}
    if hook.args:
        row["args"] = list(hook.args)
    if hook.env:
        row["env"] = list(hook.env)
    if hook.timeout is not None:
        row["timeout"] = hook.timeout
    return row
