# SPDX-License-Identifier: Apache-2.0
"""A seccomp profile that admits, of all ioctls, those that GPU work and ordinary programs need.

A filter sees the number of an ioctl and not the device it goes to, nor what its pointer leads to (seccomp(2)). And
NVIDIA's driver looks at the number's lowest byte and its size alone, not at the letter 'F' that should be in it
(open-gpu-kernel-modules, kernel-open/nvidia/nv.c, nvidia_ioctl): whatever "all ioctls but those of 'F'" lets through
would reach every one of its functions. So this is a list of what may be done, everything else is refused.

Comparisons are of 64 bits, the kernel takes the lower 32, and musl sign-extends them: each is made under a mask
(``SCMP_CMP_MASKED_EQ``), never on the whole register.

Which of the driver's ioctls are needed: its own headers (kernel-open/common/inc/nv-ioctl-numbers.h,
src/nvidia/arch/nvalloc/unix/include/nv_escape.h, kernel-open/nvidia-uvm/uvm_ioctl.h) and what gVisor's nvproxy
(pkg/sentry/devices/nvproxy/version.go) passes on for CUDA, NVML and graphics.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gpuiso.errors import BadInput
from gpuiso.oci.json_text import read_json

__all__ = ["PROFILES", "REFUSED", "Admitted", "Profile", "admits", "fragment", "merge", "parse_profile"]

Profile = Literal["compute", "graphics", "utility"]
PROFILES: tuple[Profile, ...] = ("compute", "utility", "graphics")


@dataclass(frozen=True, slots=True)
class Admitted:
    """An ioctl number, and which of its bits are looked at."""

    number: int
    mask: int
    name: str


_WORD = 0xFFFFFFFF
# All of a number but its size, which differs between releases of the driver.
_BUT_SIZE = 0xC000FFFF
_READ_WRITE = 0xC0000000
_F, _DRM, _KMS = 0x46, 0x64, 0x6D

_UTILITY = {
    200: "NV_ESC_CARD_INFO",
    201: "NV_ESC_REGISTER_FD",
    206: "NV_ESC_ALLOC_OS_EVENT",
    207: "NV_ESC_FREE_OS_EVENT",
    210: "NV_ESC_CHECK_VERSION_STR",
    212: "NV_ESC_ATTACH_GPUS_TO_FD",
    214: "NV_ESC_SYS_PARAMS",
    215: "NV_ESC_NUMA_INFO",
    218: "NV_ESC_WAIT_OPEN_COMPLETE",
    0x29: "NV_ESC_RM_FREE",
    0x2A: "NV_ESC_RM_CONTROL",
    0x2B: "NV_ESC_RM_ALLOC",
    0x34: "NV_ESC_RM_DUP_OBJECT",
    0x4E: "NV_ESC_RM_MAP_MEMORY",
    0x4F: "NV_ESC_RM_UNMAP_MEMORY",
    0x52: "NV_ESC_RM_GET_EVENT_DATA",
    0x5E: "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO",
}
_COMPUTE = {
    0x27: "NV_ESC_RM_ALLOC_MEMORY",
    0x35: "NV_ESC_RM_SHARE",
    0x4A: "NV_ESC_RM_VID_HEAP_CONTROL",
    0x57: "NV_ESC_RM_MAP_MEMORY_DMA",
    0x58: "NV_ESC_RM_UNMAP_MEMORY_DMA",
    0x5C: "NV_ESC_RM_EXPORT_OBJECT_TO_FD",
    0x5D: "NV_ESC_RM_IMPORT_OBJECT_FROM_FD",
    217: "NV_ESC_EXPORT_TO_DMABUF_FD",
}
_GRAPHICS = {
    0x28: "NV_ESC_RM_ALLOC_OBJECT",
    0x41: "NV_ESC_RM_IDLE_CHANNELS",
    0x54: "NV_ESC_RM_ALLOC_CONTEXT_DMA2",
    0x56: "NV_ESC_RM_ADD_VBLANK_CALLBACK",
    0x59: "NV_ESC_RM_BIND_CONTEXT_DMA",
}
#: Of magic 'F' and in no profile, for the documentation and the tests: raw registry, I2C, MIG and NUMA states, and
#: XFER_CMD, behind whose pointer any of the others can stand.
REFUSED = {
    209: "NV_ESC_STATUS_CODE",
    211: "NV_ESC_IOCTL_XFER_CMD",
    213: "NV_ESC_QUERY_DEVICE_INTR",
    216: "NV_ESC_SET_NUMA_STATUS",
    0x39: "NV_ESC_RM_I2C_ACCESS",
    0x4D: "NV_ESC_RM_ACCESS_REGISTRY",
    0x5F: "NV_ESC_RM_LOCKLESS_DIAGNOSTIC",
}
_UVM = {
    0x30000001: "UVM_INITIALIZE",
    0x30000002: "UVM_DEINITIALIZE",
    23: "UVM_CREATE_RANGE_GROUP",
    24: "UVM_DESTROY_RANGE_GROUP",
    25: "UVM_REGISTER_GPU_VASPACE",
    26: "UVM_UNREGISTER_GPU_VASPACE",
    27: "UVM_REGISTER_CHANNEL",
    28: "UVM_UNREGISTER_CHANNEL",
    29: "UVM_ENABLE_PEER_ACCESS",
    30: "UVM_DISABLE_PEER_ACCESS",
    31: "UVM_SET_RANGE_GROUP",
    33: "UVM_MAP_EXTERNAL_ALLOCATION",
    34: "UVM_FREE",
    35: "UVM_MEM_MAP",
    37: "UVM_REGISTER_GPU",
    38: "UVM_UNREGISTER_GPU",
    39: "UVM_PAGEABLE_MEM_ACCESS",
    40: "UVM_PREVENT_MIGRATION_RANGE_GROUPS",
    41: "UVM_ALLOW_MIGRATION_RANGE_GROUPS",
    42: "UVM_SET_PREFERRED_LOCATION",
    43: "UVM_UNSET_PREFERRED_LOCATION",
    44: "UVM_ENABLE_READ_DUPLICATION",
    45: "UVM_DISABLE_READ_DUPLICATION",
    46: "UVM_SET_ACCESSED_BY",
    47: "UVM_UNSET_ACCESSED_BY",
    51: "UVM_MIGRATE",
    53: "UVM_MIGRATE_RANGE_GROUP",
    54: "UVM_ENABLE_SYSTEM_WIDE_ATOMICS",
    55: "UVM_DISABLE_SYSTEM_WIDE_ATOMICS",
    65: "UVM_MAP_DYNAMIC_PARALLELISM_REGION",
    66: "UVM_UNMAP_EXTERNAL",
    68: "UVM_ALLOC_SEMAPHORE_POOL",
    69: "UVM_CLEAN_UP_ZOMBIE_RESOURCES",
    70: "UVM_PAGEABLE_MEM_ACCESS_ON_GPU",
    71: "UVM_POPULATE_PAGEABLE",
    72: "UVM_VALIDATE_VA_RANGE",
    73: "UVM_CREATE_EXTERNAL_RANGE",
    74: "UVM_MAP_EXTERNAL_SPARSE",
    75: "UVM_MM_INITIALIZE",
    78: "UVM_ALLOC_DEVICE_P2P",
    80: "UVM_DISCARD",
}
# Terminals, without those that type for somebody else: TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD
# (include/uapi/asm-generic/ioctls.h).
_TERMINALS = (
    *(0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5406, 0x5407, 0x5408, 0x5409, 0x540A, 0x540B, 0x540C, 0x540D),
    *(0x540E, 0x540F, 0x5410, 0x5411, 0x5413, 0x5414, 0x5415, 0x5416, 0x5417, 0x5418, 0x5419, 0x541A, 0x541B),
    *(0x5420, 0x5421, 0x5422, 0x5424, 0x5425, 0x5429, 0x5440, 0x5450, 0x5451, 0x5452, 0x545D, 0x5460),
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D, 0x80045430, 0x40045431, 0x80045432, 0x80045438, 0x80045439),
    *(0x80045440, 0x5441),
)
# Files (include/uapi/linux/fs.h, fiemap.h): sizes, flags, extents, reflinks, and the counters of /dev/random,
# pidfds, namespaces and performance events.
_FILES = (
    *(0x00000001, 0x00000002, 0x1268, 0x80081272, 0x80041271, 0x127B, 0x80041270),
    *(0x80086601, 0x40086602, 0x80046601, 0x40046602, 0x80087601, 0xC020660B, 0x801C581F, 0x401C5820),
    *(0x40049409, 0x4020940D, 0xC0189436, 0x80811501, 0x80045200, 0xB701, 0xB702, 0xB703, 0xB704, 0x8008B705),
    *(0x2400, 0x2401, 0x2402, 0x2403, 0x40082404, 0x2405, 0x40082406, 0x80082407, 0x40042408, 0x40042409),
)
#: Sockets and interfaces (include/uapi/linux/sockios.h): 0x89 and any number, without a size, which no function of
#: the driver accepts.
_SOCKETS = Admitted(0x8900, 0xFFFFFF00, "socket")
# Nodes below /dev/dri: DRM's own, and of nvidia-drm what comes after DRM_COMMAND_BASE (0x40). Neither direction nor
# size is looked at, so none of these may have the number of what REFUSED holds; the one that
# has, 0x4d (GEM_EXPORT_DMABUF_MEMORY), comes with its size.
_DRM_NUMBERS = (0x00, 0x01, 0x02, 0x05, 0x06, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x11, 0x1E, 0x1F, 0x2D, 0x2E, 0x3A)
_DRM_DRIVER = tuple(number for number in range(0x40, 0x5B) if number not in REFUSED)
_DRM_OBJECTS = tuple(range(0xA0, 0xD0))
_DRM_EXPORT = Admitted(24 << 16 | _DRM << 8 | 0x4D, 0x3FFFFFFF, "DRM 0x4d")


def admits(profile: Profile) -> tuple[Admitted, ...]:
    """What a profile lets through. ``utility`` is NVML, ``compute`` CUDA and that, ``graphics`` all three."""
    return tuple(_admits(profile))


def _admits(profile: Profile) -> Iterator[Admitted]:
    escapes = dict(_UTILITY)
    if profile != "utility":
        escapes |= _COMPUTE
    if profile == "graphics":
        escapes |= _GRAPHICS
    for number, name in sorted(escapes.items()):
        yield Admitted(_READ_WRITE | _F << 8 | number, _BUT_SIZE, name)
    if profile != "utility":
        for number, name in sorted(_UVM.items()):
            yield Admitted(number, _WORD, name)
    if profile == "graphics":
        yield Admitted(_READ_WRITE | _KMS << 8, _BUT_SIZE, "NVKMS_IOCTL_CMD")
        for number in (*_DRM_NUMBERS, *_DRM_DRIVER, *_DRM_OBJECTS):
            yield Admitted(_DRM << 8 | number, 0xFFFF, f"DRM 0x{number:02x}")
        yield _DRM_EXPORT
    for numbers, name in ((_TERMINALS, "terminal"), (_FILES, "file")):
        for number in numbers:
            yield Admitted(number, _WORD, f"{name} 0x{number:x}")
    yield _SOCKETS


def fragment(profile: Profile) -> list[dict[str, Any]]:
    """Rules of an OCI seccomp profile (``linux.seccomp.syscalls``): ioctl, and nothing else.

    They make a filter only together with a default that refuses: see :func:`merge`. One condition a rule, for
    runtimes join several on one argument differently.
    """
    return [
        {
            "names": ["ioctl"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 1, "value": one.mask, "valueTwo": one.number, "op": "SCMP_CMP_MASKED_EQ"}],
        }
        for one in admits(profile)
    ]


def parse_profile(text: str, file: str) -> dict[str, Any]:
    """A seccomp profile as Docker, podman and the OCI spell it. :raises BadInput: it is none."""
    document = read_json(text, file, "not a seccomp profile")
    if not isinstance(document, dict) or not isinstance(document.get("defaultAction"), str):
        raise BadInput("not a seccomp profile: it has no defaultAction", file=file)
    syscalls = document.get("syscalls", [])
    if not isinstance(syscalls, list) or not all(isinstance(rule, dict) for rule in syscalls):
        raise BadInput("not a seccomp profile: syscalls must be a list of objects", file=file)
    for index, rule in enumerate(syscalls):
        names = rule.get("names", [rule["name"]] if isinstance(rule.get("name"), str) else None)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadInput(f"not a seccomp profile: syscalls[{index}] has no names", file=file)
    return document


def merge(document: dict[str, Any], profile: Profile, file: str) -> dict[str, Any]:
    """A copy of a profile in which ioctl is admitted as :func:`fragment` says, and all else as before.

    :raises BadInput: the profile admits what it does not name, so that no rule could refuse anything.
    """
    if document["defaultAction"] in ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG"):
        raise BadInput(
            f"defaultAction is {document['defaultAction']}: what is not named is admitted, so ioctls cannot be"
            " restricted to a list",
            file=file,
        )
    merged = copy.deepcopy(document)
    merged["syscalls"] = [*_without_ioctl(merged.get("syscalls", [])), *fragment(profile)]
    return merged


def _without_ioctl(rules: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rules, with ioctl taken out of those that admit it; one that refuses it stays, and wins over ours."""
    for rule in rules:
        names = rule.get("names", [rule.get("name")])
        if rule.get("action") not in ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG") or "ioctl" not in names:
            yield rule
        elif len(names) > 1:
            yield {**rule, "names": [name for name in names if name != "ioctl"]}
