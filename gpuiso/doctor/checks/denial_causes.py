# SPDX-License-Identifier: Apache-2.0
"""The deeper causes of a denial, tried in turn: the first that fits takes the place of the general finding."""

from __future__ import annotations

from collections.abc import Callable

from gpuiso.doctor.checks.container_filters import (
    CONTAINER_UPDATE_LOSS,
    NVCT_NOCGROUPS,
    RELOAD_LOSS,
    never_allowed,
    updated,
    written_again,
)
from gpuiso.doctor.checks.container_runtime import not_by_variable, runtime_not_used
from gpuiso.doctor.checks.denial import Cause, Denial
from gpuiso.doctor.checks.engine_setup import ENVVAR_REFUSED, NO_RUNTIME
from gpuiso.doctor.checks.scope_devices import DEVCHAR
from gpuiso.doctor.checks.unit_devices import DEVICEALLOW_GAP, PRIVATEDEVICES, device_allow_gap, private_devices
from gpuiso.errors import Unknown

__all__ = ["RULES", "cause_of"]

RULES = (
    PRIVATEDEVICES,
    DEVICEALLOW_GAP,
    RELOAD_LOSS,
    DEVCHAR,
    NVCT_NOCGROUPS,
    CONTAINER_UPDATE_LOSS,
    ENVVAR_REFUSED,
    NO_RUNTIME,
)
_CAUSES: tuple[Callable[[Denial], Cause | None], ...] = (
    private_devices,
    device_allow_gap,
    written_again,
    never_allowed,
    updated,
    not_by_variable,
    runtime_not_used,
)


def cause_of(denial: Denial) -> Cause | None:
    """Why the gate is closed, as far as what can be read of units, containers and configuration tells."""
    for examine in _CAUSES:
        try:
            cause = examine(denial)
        except Unknown:
            continue  # the general finding stands, with what is known
        if cause is not None:
            return cause
    return None
