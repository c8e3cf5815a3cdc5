# SPDX-License-Identifier: Apache-2.0
"""The plan for a cgroup that systemd owns: through the properties of its unit."""

from __future__ import annotations

from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.plan import Plan, policy_as_json
from gpuiso.apply.steps import SetUnitProperties
from gpuiso.apply.target import Target
from gpuiso.apply.verify import Verification
from gpuiso.errors import NotSupported
from gpuiso.policy.parse import parse_device
from gpuiso.policy.resolve import ResolvedPolicy
from gpuiso.policy.rule import Rule
from gpuiso.policy.systemd import SystemdDevices, to_systemd
from gpuiso.systemd.limits import limit_properties

__all__ = ["plan_new_scope", "plan_unit"]

_PATHS = {"/dev/char/": "c", "/dev/block/": "b"}
_CLASSES = {"char-": "c", "block-": "b"}


def plan_unit(
    calls: Calls,
    target: Target,
    policy: ResolvedPolicy,
    *,
    file: str | None = None,
    narrower: bool = False,
    persistent: bool = False,
) -> Plan:
    """:raises NotSupported: systemd has no way to say it. Nothing is changed."""
    unit = target.unit or ""
    shown = calls.unit_properties(unit)
    if "DeviceAllow" not in shown:
        raise NotSupported(f"{unit} is of a kind that has no DeviceAllow")
    properties: list[tuple[str, Any]] = []
    notes: list[str] = []
    verification = None
    if policy.restricts_devices:
        devices, base = _devices(policy, shown)
        if base:
            notes.append(
                f"{unit} has a list of its own: what the policy denies is taken from it, the rest stays; "
                "mknod is allowed for the devices of the list alone"
            )
        properties += [("DevicePolicy", devices.policy), ("DeviceAllow", [list(entry) for entry in devices.allow])]
        rules = (*base, *policy.rules) if base else tuple(policy.rules)
        if target.v2 is not None or target.v1 is not None:
            default_allow = policy.default_allow and not base
            verification = Verification(target.v2, target.v1, rules, default_allow, narrower or bool(base))
        else:
            notes.append(f"{unit} does not run: the rules hold from its next start, and nothing can be tried now")
    properties += limit_properties(policy.files)
    transient = bool(shown.get("Transient"))
    if transient and persistent:
        raise NotSupported(f"{unit} is transient: nothing of it outlives it, so no change is for good")
    step = SetUnitProperties(unit, tuple(properties), runtime=not persistent, transient=transient)
    steps = (step,) if properties else ()
    return Plan(target, steps, verification, policy_as_json(policy, file=file), tuple(notes))


def plan_new_scope(
    target: Target, policy: ResolvedPolicy, *, file: str | None = None, narrower: bool = False
) -> tuple[Plan, tuple[tuple[str, Any], ...]]:
    """The plan for a scope that is still to be started, without its steps, and the properties it starts with."""
    properties: list[tuple[str, Any]] = []
    verification = None
    if policy.restricts_devices:
        devices = to_systemd(policy.rules, default_allow=policy.default_allow)
        properties.append(("DevicePolicy", devices.policy))
        if devices.allow:
            properties.append(("DeviceAllow", [list(entry) for entry in devices.allow]))
        verification = Verification(target.v2, None, tuple(policy.rules), policy.default_allow, narrower)
    properties += limit_properties(policy.files)
    return Plan(target, (), verification, policy_as_json(policy, file=file)), tuple(properties)


def _devices(policy: ResolvedPolicy, shown: Any) -> tuple[SystemdDevices, tuple[Rule, ...]]:
    """The settings, and the unit's own list as rules where the policy is to be taken from that.

    systemd knows no denials. A policy that allows all but something can still be said for a unit that has a list:
    the list without it. The wildcards for mknod that container engines put into theirs go, if they are in the way.
    """
    try:
        return to_systemd(policy.rules, default_allow=policy.default_allow), ()
    except NotSupported:
        base = _own_list(shown) if policy.default_allow else ()
        if not base:
            raise
        denials = [rule for rule in policy.rules if not rule.allow]
        try:
            return to_systemd([*base, *denials], default_allow=False), base
        except NotSupported:
            base = tuple(rule for rule in base if rule.access != "m" or rule.major is not None)
            return to_systemd([*base, *denials], default_allow=False), base


def _own_list(shown: Any) -> tuple[Rule, ...]:
    """The unit's DeviceAllow as rules; empty if it has none, or one that names nodes by path."""
    if shown["DevicePolicy"] != "strict":
        return ()
    found = []
    for device, access in shown["DeviceAllow"]:
        numbers = _numbers(device)
        if numbers is None:
            return ()
        found.append(parse_device(f"{numbers} {access}", allow=True, file="DeviceAllow"))
    return tuple(found)


def _numbers(device: str) -> str | None:
    for prefix, kind in _PATHS.items():
        if device.startswith(prefix):
            return f"{kind} {device.removeprefix(prefix)}"
    for prefix, kind in _CLASSES.items():
        major = device.removeprefix(prefix)
        if device.startswith(prefix) and (major == "*" or major.isdigit()):
            return f"{kind} {major}:*"
    return None
