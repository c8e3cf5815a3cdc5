# SPDX-License-Identifier: Apache-2.0
"""The variables that select GPUs, so that they select what the device rules allow, and nothing that fights them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuiso.errors import UsageError
from gpuiso.grants.units import Unit

__all__ = ["DECIDED", "Environment", "compose", "inherited"]

DECIDED = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
)
"""Variables that a launch sets or removes, whatever they were."""


@dataclass(frozen=True)
class Environment:
    """``values`` is all of it, ``set`` what the launch decided, ``notices`` say what it took away or replaced."""

    values: Mapping[str, str]
    set: Mapping[str, str]
    notices: tuple[str, ...]


def compose(base: Mapping[str, str], given: Mapping[str, str], units: Sequence[Unit]) -> Environment:
    """``base`` is the caller's environment, ``given`` what was asked for on top of it.

    :raises UsageError: ``given`` has a variable that selects GPUs.
    """
    for name in given:
        if name in DECIDED:
            raise UsageError(f"--env {name} would select GPUs", hint="--gpus does that, for all variables at once")
    chosen = _selection(units)
    values = {name: value for name, value in base.items() if name not in DECIDED}
    notices = []
    for name in DECIDED:
        before = base.get(name)
        if before is not None and name not in chosen:
            notices.append(f"{name}={before} was removed: it would select among the GPUs that were leased")
        elif before is not None and before != chosen[name]:
            notices.append(f"{name}={before} was replaced by {name}={chosen[name]}")
    return Environment({**values, **given, **chosen}, chosen, tuple(notices))


def inherited(environ: Mapping[str, str], original: bytes) -> dict[str, str]:
    """``environ`` without what Python itself put there: in the C locale it sets LC_CTYPE for its children (PEP 538).

    ``original`` is /proc/PID/environ, what the process was started with.
    """
    names = {entry.partition(b"=")[0] for entry in original.split(b"\0")}
    return {name: value for name, value in environ.items() if name != "LC_CTYPE" or b"LC_CTYPE" in names}


def _selection(units: Sequence[Unit]) -> dict[str, str]:
    """Names where there are names, since they mean the same under every numbering.

    Denied AMD and Intel GPUs are not counted at all, so there the rest can be numbered from 0, or left unnamed.
    HIP reads CUDA_VISIBLE_DEVICES unless HIP_VISIBLE_DEVICES is set; NVIDIA's container runtime takes void for
    "nothing to do here".
    """
    found = {"NVIDIA_VISIBLE_DEVICES": "void"}
    nvidia = [unit for unit in units if unit.vendor == "nvidia"]
    amd = [unit for unit in units if unit.vendor == "amd"]
    if nvidia or not units:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(unit.id for unit in nvidia)
    if nvidia:
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if amd:
        names = [_rocr_name(unit) for unit in amd]
        places = [str(place) for place in range(len(amd))]
        found["ROCR_VISIBLE_DEVICES"] = ",".join(places if None in names else filter(None, names))
        found["HIP_VISIBLE_DEVICES"] = ",".join(places)
    return found


def _rocr_name(unit: Unit) -> str | None:
    """ROCr knows a GPU as GPU- and the 16 hex digits of its unique id; None if it has none."""
    digits = (unit.uuid or "").lower().removeprefix("gpu-").removeprefix("0x")
    return f"GPU-{digits:0>16}" if digits.strip("0") else None
