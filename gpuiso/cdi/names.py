# SPDX-License-Identifier: Apache-2.0
"""Names: ``vendor/class=name`` and what each part may hold (pkg/parser/parser.go of the reference).

The length and DNS limits of SPEC.md are not enforced by the reference, so not here; the lint tells of them.
"""

from __future__ import annotations

import re

__all__ = ["kind_fault", "name_fault", "qualified_name", "split_kind", "split_qualified"]

# One letter, or a letter first and a letter or digit last.
_PREFIX = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")


def split_kind(kind: str) -> tuple[str, str]:
    """``vendor/class`` as (vendor, class); the first slash divides, what is missing is empty."""
    vendor, slash, device_class = kind.partition("/")
    return (vendor, device_class) if slash else ("", kind)


def qualified_name(kind: str, name: str) -> str:
    return f"{kind}={name}"


def split_qualified(device: str) -> tuple[str, str] | None:
    """``vendor/class=name`` as (kind, name), None if it is not a qualified device name."""
    kind, equals, name = device.partition("=")
    if not equals or kind_fault(kind) is not None or name_fault(name) is not None:
        return None
    return kind, name


def kind_fault(kind: str) -> str | None:
    """What is wrong with a kind, None if nothing."""
    if "/" not in kind:
        return f"kind {kind!r} is not vendor/class"
    vendor, device_class = split_kind(kind)
    for part, what in ((vendor, "vendor"), (device_class, "class")):
        if not part:
            return f"kind {kind!r} has no {what}"
        if not _PREFIX.match(part):
            return (
                f"{what} {part!r} must start with a letter, end with a letter or digit "
                "and hold only letters, digits, '_', '-' and '.'"
            )
    return None


def name_fault(name: str) -> str | None:
    """What is wrong with a device name, None if nothing."""
    if not name:
        return "the device name is empty"
    if not _NAME.match(name):
        return (
            f"device name {name!r} must start and end with a letter or digit "
            "and hold only letters, digits, '_', '-', '.' and ':'"
        )
    return None
