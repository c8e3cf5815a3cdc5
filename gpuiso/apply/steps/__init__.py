# SPDX-License-Identifier: Apache-2.0
"""The steps that plans are made of, one module a kind."""

from __future__ import annotations

from gpuiso.apply.steps.base import Before, Keep, Occupied, Step, StepFailed, from_json
from gpuiso.apply.steps.controllers import EnableControllers
from gpuiso.apply.steps.device_program import AttachProgram
from gpuiso.apply.steps.directory import MakeCgroup
from gpuiso.apply.steps.hold_share import HoldShare
from gpuiso.apply.steps.limit import WriteLimit
from gpuiso.apply.steps.move_tree import MoveTree
from gpuiso.apply.steps.remember import Remember
from gpuiso.apply.steps.replace_program import ReplaceProgram
from gpuiso.apply.steps.start_scope import StartScope
from gpuiso.apply.steps.unit_properties import SetUnitProperties
from gpuiso.apply.steps.v1_devices import V1Devices

__all__ = [
    "AttachProgram",
    "Before",
    "EnableControllers",
    "HoldShare",
    "Keep",
    "MakeCgroup",
    "MoveTree",
    "Occupied",
    "Remember",
    "ReplaceProgram",
    "SetUnitProperties",
    "StartScope",
    "Step",
    "StepFailed",
    "V1Devices",
    "WriteLimit",
    "from_json",
]
