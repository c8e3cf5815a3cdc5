# SPDX-License-Identifier: Apache-2.0
"""The plan for a cgroup that systemd owns: through the properties of its unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuiso.apply.calls import Calls
from gpuiso.apply.in_effect import in_effect
from gpuiso.apply.plan import Plan, policy_as_json
from gpuiso.apply.steps import SetUnitProperties
from gpuiso.apply.target import Target
from gpuiso.apply.verify import Verification
from gpuiso.errors import NotSupported
from gpuiso.host.protocol import Host
from gpuiso.policy.resolve import ResolvedPolicy
from gpuiso.policy.rule import Rule
from gpuiso.policy.systemd import SystemdDevices, to_systemd
from gpuiso.systemd.limits import limit_properties

__all__ = ["plan_new_scope", "plan_unit"]


def plan_unit(
    host: Host,
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
        devices, base = _devices(host, target, policy, shown)
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
    place = target.v2
    step = SetUnitProperties(
        unit,
        tuple(properties),
        runtime=not persistent,
        transient=transient,
        mount=None if place is None else place.mount,
        cgroup=None if place is None else place.cgroup,
    )
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


def _devices(
    host: Host, target: Target, policy: ResolvedPolicy, shown: Mapping[str, Any]
) -> tuple[SystemdDevices, tuple[Rule, ...]]:
    """The settings, and what the unit allows so far as rules where the policy is to be taken from that.

    systemd knows no denials. A policy that allows all but something can still be said for a unit that has a list:
    the list without it. The wildcards for mknod that container engines put into theirs go, if they are in the way.
    """
    try:
        return to_systemd(policy.rules, default_allow=policy.default_allow), ()
    except NotSupported:
        base = in_effect(host, target, shown) if policy.default_allow else ()
        if not base:
            raise
        denials = [rule for rule in policy.rules if not rule.allow]
        try:
            return to_systemd([*base, *denials], default_allow=False), base
        except NotSupported:
            base = tuple(rule for rule in base if rule.access != "m" or rule.major is not None)
            return to_systemd([*base, *denials], default_allow=False), base
