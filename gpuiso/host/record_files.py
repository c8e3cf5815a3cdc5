# SPDX-License-Identifier: Apache-2.0
"""The content of a record's files: what of a host's file is kept, and how it is redacted."""

from __future__ import annotations

import re

from gpuiso.host.record_settings import CONTAINER_STATE, SETTINGS, device_lines, without_values
from gpuiso.host.redact import Redactor

__all__ = ["MAX_RECORDED", "kept_bytes", "redacted_bytes"]

MAX_RECORDED = 4 << 20  # bytes of one file; those a record is made of are far smaller

_MAPS_LINE = re.compile(
    rb"libcuda|libnvidia|/nvidia|/stubs/|/compat/|/dev/(?:nvidia|dri|kfd|dxg)|librocm|libhsa|libze_"
    rb"|/(?:torch|tensorflow|cupy|jaxlib)/lib"
)
_MODULES_DEP = re.compile(r"/lib/modules/[^/]+/modules\.dep")
_MODULE_LINE = re.compile(rb"nvidia|nouveau|amdgpu|i915|/xe/|vfio")
_MAPS = re.compile(r"/proc/(?:\d+|self)/maps")
_ENVIRON = re.compile(r"/proc/(?:\d+|self)/environ")
_CMDLINE = re.compile(r"/proc/(?:\d+|self)/cmdline")
_PCI_CONFIG = re.compile(r"/sys/bus/pci/devices/[^/]+/config")
_UNIQUE_ID = re.compile(r"(?m)(^unique_id )(\d+)$")
#: What the kernel and the driver print: it has identifiers in it, but nobody's name.
_PRINTED_BY_KERNEL = re.compile(r"/sys/.*|/proc/(?:driver/.*|(?!cmdline)[a-z_]+)|(?:/proc/\d+/root)?/etc/os-release")
#: Programs and shell files are people's own: of them only lines about visible devices and imports of CUDA libraries.
_SOURCE = re.compile(
    r".*\.(?:py|sh)|(?:/proc/\d+/root)?(?:/etc/(?:environment|profile|bashrc|bash\.bashrc|zsh/.*)|/(?:home|root|srv|opt)/.*)"
)
_SOURCE_LINE = re.compile(
    r"VISIBLE_DEVICES|CUDA_DEVICE_ORDER|AFFINITY_MASK"
    r"|^\s*(?:import|from)\s+(?:torch|tensorflow|cupy|jax|numba|pycuda)\b"
)
#: It holds the credentials of registries.
_DOCKER_CLIENT = re.compile(r"/(?:root|home/[^/]+)/\.docker/config\.json")
_CONTEXT = re.compile(rb'"currentContext"\s*:\s*"[^"]*"')
_PCI_HEADER = 64  # bytes of the standard header; what follows may hold a serial number


def kept_bytes(path: str, data: bytes) -> bytes:
    """What a record keeps of a file in any case: of mappings those of GPU libraries and nodes, and no credentials."""
    for file, kept in ((_MAPS, _MAPS_LINE), (_MODULES_DEP, _MODULE_LINE)):
        if file.fullmatch(path):
            return b"".join(line + b"\n" for line in data.splitlines() if kept.search(line))
    if _DOCKER_CLIENT.fullmatch(path):
        return b"{" + b"".join(_CONTEXT.findall(data)[:1]) + b"}"
    return data[:_PCI_HEADER] if _PCI_CONFIG.fullmatch(path) else data


def redacted_bytes(path: str, data: bytes, redactor: Redactor) -> bytes | None:
    """The file without names; None if that cannot be done, because its format has offsets into itself."""
    if _ENVIRON.fullmatch(path):
        return redactor.environ(data)
    if _DOCKER_CLIENT.fullmatch(path):
        return redactor.config(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if _CMDLINE.fullmatch(path):
        return redactor.cmdline(data)
    if _PCI_CONFIG.fullmatch(path):
        return data
    if b"\0" in data.rstrip(b"\0"):
        return None if redactor.leaks(data) else data
    text = data.decode("utf-8", "surrogateescape")
    if path.endswith("/unique_id"):
        text = _hexadecimal_id(text, redactor)
    elif path.startswith("/sys/class/kfd/"):
        text = _UNIQUE_ID.sub(lambda match: f"{match[1]}{redactor.amd_unique_id(int(match[2]))}", text)
    elif _PRINTED_BY_KERNEL.fullmatch(path):
        text = redactor.identifiers(text)
    elif SETTINGS.fullmatch(path):
        text = redactor.config(device_lines(text))
    elif CONTAINER_STATE.fullmatch(path):
        text = redactor.config(without_values(text, redactor))
    elif _SOURCE.fullmatch(path):
        lines = (line if _SOURCE_LINE.search(line) else "" for line in text.split("\n"))  # line numbers stay
        text = redactor.config("\n".join(lines))
    elif path.startswith("/proc/"):
        text = redactor.text(text)
    else:
        text = redactor.config(text)
    return text.encode("utf-8", "surrogateescape")


def _hexadecimal_id(text: str, redactor: Redactor) -> str:
    digits = text.strip()
    if re.fullmatch("[0-9a-f]{16}", digits) is None:
        return text
    return text.replace(digits, f"{redactor.amd_unique_id(int(digits, 16)):016x}")
