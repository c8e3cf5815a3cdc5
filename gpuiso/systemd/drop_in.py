# SPDX-License-Identifier: Apache-2.0
"""A drop-in that gives a unit the rules of a policy from its next start on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuiso.errors import NotSupported
from gpuiso.policy.resolve import ResolvedPolicy
from gpuiso.policy.rule import Rule
from gpuiso.policy.systemd import to_systemd
from gpuiso.systemd.limits import limit_settings
from gpuiso.systemd.recipes import Recipe, find_recipes
from gpuiso.systemd.unit_files import Setting, section_of

__all__ = ["DropIn", "make_drop_in"]


@dataclass(frozen=True)
class DropIn:
    """``path`` is where it belongs, ``notes`` are what a reader should know."""

    path: str
    text: str
    notes: tuple[str, ...]


def make_drop_in(unit: str, settings: Sequence[Setting], policy: ResolvedPolicy | None) -> DropIn:
    """The rules of ``policy``, and those that false recipes in the unit were meant to set, as settings.

    Without a policy the recipes' rules are added to what systemd's ``closed`` allows.

    :raises NotSupported: systemd cannot say it, or there is nothing to say.
    """
    recipes = find_recipes(settings)
    lines, notes = [f"[{section_of(unit)}]"], [note for recipe in recipes for note in recipe.notes]
    lines += _devices(policy, [rule for recipe in recipes for rule in recipe.rules])
    if policy is not None:
        lines += limit_settings(policy.files)
        limits = {"gpu.max": policy.gpu_max, "gpu.memory.max": policy.memory_max}
        notes += [f"{name} {value}: systemd has no setting for it" for name, value in limits.items() if value]
    for name in dict.fromkeys(recipe.setting.name for recipe in recipes if recipe.whole):
        lines += _without(name, settings, [recipe for recipe in recipes if recipe.whole])
    for recipe in recipes:
        if not recipe.whole:
            where = f"{recipe.setting.file}:{recipe.setting.line}"
            notes.append(f"{where}: {recipe.setting.name} does more than that, so it stays: edit it by hand")
    if len(lines) == 1:
        raise NotSupported(f"there is nothing to put into {unit}: no policy is given, and its commands write no rules")
    said = [f"# Made by: gpuiso rules unit {unit}", *(f"# {note}" for note in notes)]
    return DropIn(f"/etc/systemd/system/{unit}.d/50-gpuiso.conf", "\n".join([*said, *lines]) + "\n", tuple(notes))


def _devices(policy: ResolvedPolicy | None, meant: Sequence[Rule]) -> list[str]:
    if policy is not None and policy.restricts_devices:
        return to_systemd([*policy.rules, *meant], default_allow=policy.default_allow).unit_lines()
    if not meant:
        return []
    lines = to_systemd(meant, default_allow=not any(rule.allow for rule in meant)).unit_lines()
    return ["DevicePolicy=closed", *lines[1:]] if lines[0] == "DevicePolicy=strict" else lines


def _without(name: str, settings: Sequence[Setting], recipes: Sequence[Recipe]) -> list[str]:
    """The commands of one setting without those of the recipes; the empty one forgets what the unit's files have."""
    gone = {id(recipe.setting) for recipe in recipes}
    kept: list[str] = []
    for setting in settings:
        if setting.name == name:
            kept = kept if setting.value else []
            if setting.value and id(setting) not in gone:
                kept.append(f"{name}={setting.value}")
    return [f"{name}=", *kept]
