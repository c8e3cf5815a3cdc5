# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the environment of a process selects, whether it may open them or not.

An index counts the GPUs that are in the process's own /dev: whoever wrote it saw those. So a node that is there but
denied by a mode or a device filter does not shift the numbers here, as it does for CUDA; that the process then sees
another GPU is what the doctor tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuiso.doctor.map.columns import device_name
from gpuiso.doctor.map.model import Column
from gpuiso.gpu.model import Inventory, Vendor
from gpuiso.gpu.visibility.cuda import cuda_visible
from gpuiso.gpu.visibility.level_zero import level_zero_visible
from gpuiso.gpu.visibility.model import Kind, Reason, Visibility
from gpuiso.gpu.visibility.nvidia import nvidia_visible
from gpuiso.gpu.visibility.rocm import rocm_visible

__all__ = ["Selection", "select"]

Selection = Mapping[Vendor, frozenset[str]]
"""The ids of selected columns by vendor; a vendor whose variables are not set is left out."""

_CUDA = "CUDA_VISIBLE_DEVICES"
_RUNTIME = "NVIDIA_VISIBLE_DEVICES"
_AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_INTEL = "ZE_AFFINITY_MASK"
_NAMES_A_GPU = (Reason.DENIED, Reason.DUPLICATE, Reason.REFUSED)


def select(
    inventory: Inventory,
    columns: Sequence[Column],
    env: Mapping[str, str],
    *,
    absent: Collection[str],
    container: bool,
) -> Selection:
    """What ``env`` selects. ``absent`` are GPU nodes that are not in the process's /dev.

    ``container`` tells whether NVIDIA_VISIBLE_DEVICES means anything: only a container runtime reads it.
    """
    found: dict[Vendor, frozenset[str]] = {}
    nvidia = _nvidia(inventory, columns, env, absent, container)
    if nvidia is not None:
        found["nvidia"] = nvidia
    if any(name in env for name in _AMD) or (_CUDA in env and not inventory.of("nvidia") and inventory.of("amd")):
        seen = rocm_visible(inventory.gpus, env, denied=absent)
        found["amd"] = frozenset(_named(columns, "amd", seen))
    if _INTEL in env:
        seen = level_zero_visible(inventory.gpus, env, denied=absent)
        found["intel"] = frozenset(_named(columns, "intel", seen))
    return found


def _nvidia(
    inventory: Inventory, columns: Sequence[Column], env: Mapping[str, str], absent: Collection[str], container: bool
) -> frozenset[str] | None:
    if not inventory.of("nvidia"):
        return None
    given = _given(inventory, columns, env) if container else None
    if _CUDA not in env:
        return given
    seen = cuda_visible(inventory.gpus, env, denied=absent, driver_version=inventory.driver_version)
    chosen = frozenset(_named(columns, "nvidia", seen))
    return chosen if given is None else chosen & given


def _given(inventory: Inventory, columns: Sequence[Column], env: Mapping[str, str]) -> frozenset[str] | None:
    """What the runtime was asked to put into the container; None if it was not asked for certain GPUs.

    ``all`` prefers none, and ``void`` is also what the runtime writes when the GPUs come by CDI.
    """
    if _RUNTIME not in env:
        return None
    injection = nvidia_visible(inventory.gpus, env)
    if injection.fails is not None or injection.mode in ("all", "void"):
        return None
    wanted = {(gpu.physical, gpu.mig) for gpu in injection.gpus}
    return frozenset(
        column.id
        for column in columns
        if column.gpu.vendor == "nvidia"
        and ((column.gpu.index, device_name(column.mig)) in wanted or (column.gpu.index, None) in wanted)
    )


def _named(columns: Sequence[Column], vendor: Vendor, seen: Visibility) -> Iterator[str]:
    """The columns that are shown, and those named by tokens that show nothing because of a denial or a repetition."""
    shown = {(gpu.physical, gpu.mig) for gpu in seen.gpus}
    named = {token.physical for token in seen.tokens if token.reason in _NAMES_A_GPU and token.kind is not Kind.MIG}
    instances = [token.text for token in seen.tokens if token.reason in _NAMES_A_GPU and token.kind is Kind.MIG]
    for column in columns:
        if column.gpu.vendor != vendor:
            continue
        uuid = None if column.mig is None else column.mig.uuid
        if (
            (column.gpu.index, device_name(column.mig)) in shown
            or column.gpu.index in named
            or (uuid is not None and any(uuid.lower().startswith(text.lower()) for text in instances))
        ):
            yield column.id
