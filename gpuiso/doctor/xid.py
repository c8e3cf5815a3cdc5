# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's catalogue of Xid errors: the action it asks for at once, by number.

The actions are those of https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html as of 2025-10-29, the
words for them ours. Where other collections disagree (gpud rates 38, 44, 63 and 121 as fatal, NVIDIA says to ignore
them) NVIDIA's word stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuiso.doctor.finding import Severity

__all__ = ["BUS_LOST", "CATALOGUE", "RECOVERY", "RECOVERY_CHANGED", "Action", "Xid", "look_up"]

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

BUS_LOST = 79
RECOVERY_CHANGED = 154


@dataclass(frozen=True, slots=True)
class Action:
    """What NVIDIA asks for. ``word`` is the catalogue's own; ``needs_reset`` that the GPU is of no use before one."""

    word: str
    severity: Severity
    advice: str
    needs_reset: bool = False


@dataclass(frozen=True, slots=True)
class Xid:
    """One entry. ``name`` is None where the line of the kernel log says all there is to say."""

    number: int
    name: str | None
    action: Action


RESTART_APP = Action("RESTART_APP", "info", "Restart the application, and look for the fault in it first.")
IGNORE = Action("IGNORE", "info", "Nothing needs to be done.")
RESET_GPU = Action("RESET_GPU", "error", "Stop what uses the GPU and reset it.", needs_reset=True)
RESTART_BM = Action("RESTART_BM", "error", "Restart the machine itself, not a virtual machine on it.", needs_reset=True)
RESTART_VM = Action("RESTART_VM", "error", "Restart the virtual machine.", needs_reset=True)
UPDATE_SWFW = Action("UPDATE_SWFW", "warning", "Update the driver, vGPU software or firmware.")
CHECK_MECHANICALS = Action("CHECK_MECHANICALS", "error", "Check the power cables and the seat of the board.")
CHECK_UVM = Action("CHECK_UVM", "warning", "Look at the messages of nvidia-uvm around this one.")
CONTACT_SUPPORT = Action("CONTACT_SUPPORT", "warning", "Report it to the vendor of the machine or to NVIDIA.")
FOLLOW_OTHER = Action(
    "WORKFLOW_XID_45",
    "info",
    "The driver cleaned up after an application that ended or failed: follow the other Xid of this GPU, if any.",
)
ECC_WORKFLOW = Action(
    "WORKFLOW_XID_48",
    "warning",
    "Drain the GPU and reset it; follow Xid 63, 64, 94 or 95 where one stands beside it.",
)
NVLINK_WORKFLOW = Action(
    "WORKFLOW_NVLINK_ERR",
    "warning",
    "Look at the state of the links (nvidia-smi nvlink --status); if a link stays down, reset the GPUs, then have the"
    " hardware checked.",
)
NVLINK5_WORKFLOW = Action(
    "WORKFLOW_NVLINK5_ERR",
    "warning",
    "Follow NVIDIA's table of NVLink 5 errors for the unit and link that the message names.",
)
FOLLOW_TEXT = Action("XID_154", "error", "Do what the message asks for.", needs_reset=True)
NOTE = Action("none given", "info", "NVIDIA's catalogue names no action for it.")
NOT_GIVEN = Action("none given", "warning", "NVIDIA's catalogue names no action for it: watch whether it repeats.")
NOT_LISTED = Action(
    "not listed", "warning", "The catalogue that gpuiso knows does not list this number: look it up in NVIDIA's own."
)


def _numbers(text: str) -> list[int]:
    """``68-72 75`` as numbers."""
    found: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


_ACTIONS: Mapping[Action, str] = {
    RESTART_APP: "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    RESET_GPU: "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
    RESTART_BM: "79",
    RESTART_VM: "151",
    UPDATE_SWFW: "78",
    CHECK_MECHANICALS: "54",
    CHECK_UVM: "159",
    CONTACT_SUPPORT: "142",
    FOLLOW_OTHER: "45",
    ECC_WORKFLOW: "48",
    NVLINK_WORKFLOW: "74",
    NVLINK5_WORKFLOW: "144-150",
    FOLLOW_TEXT: "154",
    IGNORE: "14 37 38 43 44 63 66 67 92 93 106-108 121 137 141 152 153 157 160 161",
    NOTE: "162-165",
    NOT_GIVEN: "166-172",
}
_BY_NUMBER: Mapping[int, Action] = {number: action for action, text in _ACTIONS.items() for number in _numbers(text)}
_LAST_UNUSED = 138  # numbers up to here that are not in use stand in the catalogue with CONTACT_SUPPORT

_NAMES: Mapping[int, str] = {
    8: "GPU stopped processing",
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing a channel",
    45: "preemptive cleanup, due to previous errors",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping recorded",
    64: "ECC page retirement or row remapping failed",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    78: "vGPU start error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "GSP firmware does not answer in time",
    120: "GSP firmware error",
    121: "C2C link corrected error",
    137: "NVLink FLA privilege error",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    154: "GPU recovery action changed",
}

#: What a driver may want done to a GPU: nvmlDeviceGetFieldValues of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, Xid 154.
RECOVERY: Mapping[int, str] = {
    0: "nothing",
    1: "a reset of the GPU",
    2: "a reboot of this node",
    3: "to drain what uses it over peer-to-peer links",
    4: "to drain it, then reset it",
    5: "a recovery of the IMEX domain",
    6: "a reset of its bus",
    7: "a reboot of the system",
}


def look_up(number: int) -> Xid:
    """The entry of an Xid; numbers the catalogue leaves out have an action that says so."""
    action = _BY_NUMBER.get(number)
    if action is None:
        action = CONTACT_SUPPORT if number <= _LAST_UNUSED else NOT_LISTED
    return Xid(number, _NAMES.get(number), action)
