# SPDX-License-Identifier: Apache-2.0
"""Device rules as DevicePolicy= and DeviceAllow= of systemd.resource-control(5).

systemd knows a list of what is allowed, no denials. Devices are named by number, as ``/dev/char/195:0`` and
``char-195``, which systemd reads without looking the node up; so a unit that starts before the driver made its nodes
has its rules all the same. One entry must cover an access as a whole, and each does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuiso.errors import NotSupported
from gpuiso.policy.exceptions import Hole, Key, exceptions
from gpuiso.policy.rule import ALL_ACCESS, Rule, letters

__all__ = ["SystemdDevices", "to_systemd"]

_WORDS = {"c": "char", "b": "block"}
_EVERYTHING: dict[Key, int] = {("c", None, None): ALL_ACCESS, ("b", None, None): ALL_ACCESS}


@dataclass(frozen=True)
class SystemdDevices:
    """``policy`` is auto (no filter at all) or strict; ``allow`` are pairs of a device and an access.

    They are the values of the properties DevicePolicy (s) and DeviceAllow (a(ss)) of a unit.
    """

    policy: Literal["auto", "strict"]
    allow: tuple[tuple[str, str], ...]

    def unit_lines(self) -> list[str]:
        """The settings as a unit file has them; the empty one forgets what was set before."""
        return [
            f"DevicePolicy={self.policy}",
            "DeviceAllow=",
            *(f"DeviceAllow={device} {access}" for device, access in self.allow),
        ]


def to_systemd(rules: Sequence[Rule], *, default_allow: bool = False) -> SystemdDevices:
    """The settings that mean what the rules mean.

    :raises NotSupported: there are none; it names the rule that is in the way.
    """
    try:
        allowed = exceptions(rules, rules_default=default_allow, default_allow=False)
    except Hole as hole:
        raise hole.because("systemd has no deny, only a list of what is allowed") from None
    if allowed == _EVERYTHING:
        return SystemdDevices("auto", ())
    return SystemdDevices("strict", tuple((_device(key, rules), letters(bits)) for key, bits in allowed.items()))


def _device(key: Key, rules: Sequence[Rule]) -> str:
    device, major, minor = key
    word = _WORDS[device]
    if major is None and minor is not None:
        rule = next(rule for rule in reversed(rules) if rule.major is None and rule.minor == minor)
        raise NotSupported(
            f"{rule.place or rule}: systemd cannot allow the minor {minor} of every major",
            hint="allow MAJOR:MINOR pairs, or a whole major",
        )
    if minor is not None:
        return f"/dev/{word}/{major}:{minor}"
    return f"{word}-{'*' if major is None else major}"
