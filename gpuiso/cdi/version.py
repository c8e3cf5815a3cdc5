# SPDX-License-Identifier: Apache-2.0
"""Versions of the CDI specification, and the lowest one that has all the fields a spec uses.

The table of SPEC.md, "Version", and specs-go/version.go of the reference. 0.8.0 and 1.0.0 brought no field.
"""

from __future__ import annotations

from gpuiso.cdi.spec import ContainerEdits, Spec

__all__ = ["CURRENT", "EARLIEST", "KNOWN", "minimum_version", "parse_version", "version_fault"]

KNOWN = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
EARLIEST = "0.3.0"
CURRENT = KNOWN[-1]


def parse_version(version: str) -> tuple[int, ...] | None:
    """A known version (a leading ``v`` is tolerated) as a tuple that compares, None if it is not known."""
    bare = version.removeprefix("v")
    return tuple(int(part) for part in bare.split(".")) if bare in KNOWN else None


def minimum_version(spec: Spec) -> str:
    """The lowest version whose fields are enough for ``spec``."""
    edits = tuple(spec.all_edits())
    if any(_needs_1_1(each) for each in edits):
        return "1.1.0"
    if any(each.intel_rdt is not None or each.additional_gids for each in edits):
        return "0.7.0"
    if spec.annotations or any(device.annotations for device in spec.devices) or _dotted_class(spec.kind):
        return "0.6.0"
    if any(device.name and not _letter(device.name[0]) for device in spec.devices):
        return "0.5.0"
    if any(node.host_path for each in edits for node in each.device_nodes):
        return "0.5.0"
    if any(mount.type for each in edits for mount in each.mounts):
        return "0.4.0"
    return EARLIEST


def version_fault(spec: Spec) -> str | None:
    """Why the version of ``spec`` cannot stand, None if it can."""
    version = parse_version(spec.version)
    if version is None:
        return f"cdiVersion {spec.version!r} is not one of {', '.join(KNOWN)}"
    lowest = minimum_version(spec)
    if version < tuple(int(part) for part in lowest.split(".")):
        return f"cdiVersion {spec.version!r} is too low: the fields used need at least {lowest}"
    return None


def _needs_1_1(edits: ContainerEdits) -> bool:
    rdt = edits.intel_rdt
    return bool(edits.net_devices) or (rdt is not None and (rdt.schemata is not None or rdt.enable_monitoring))


def _dotted_class(kind: str) -> bool:
    vendor, _, device_class = kind.partition("/")
    return bool(vendor) and "." in device_class


def _letter(character: str) -> bool:
    return character.isascii() and character.isalpha()
