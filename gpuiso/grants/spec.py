# SPDX-License-Identifier: Apache-2.0
"""What ``--gpus`` asks for.

``2`` is a number of GPUs; ``0,3``, ``GPU-98b0``, ``amd:0``, ``0000:06:00.0`` and ``MIG-…`` name them, ``mig:1g.18gb``
is a MIG device of a profile; ``all`` and ``none`` are what they say.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuiso.errors import NotFound, UsageError
from gpuiso.gpu.pci import is_address, normal_address
from gpuiso.grants.units import Unit

__all__ = ["Request", "matching", "parse_request"]

_VENDORS = ("nvidia", "amd", "intel")
_MOST = 1024


@dataclass(frozen=True)
class Request:
    """``text`` as written. Each slot holds the ids of the units of which one is wanted, the most wanted first."""

    text: str
    slots: tuple[tuple[str, ...], ...]

    @property
    def wanted(self) -> frozenset[str]:
        """Every unit that would do."""
        return frozenset(unit for slot in self.slots for unit in slot)

    def within(self, allowed: Collection[str]) -> Request:
        """The same request for one who may have only these units; slots may become empty."""
        return Request(self.text, tuple(tuple(unit for unit in slot if unit in allowed) for slot in self.slots))

    def assign(self, free: Collection[str]) -> tuple[str, ...] | None:
        """A unit for each slot, None if there are not enough.

        Slots are equal, apart, or one inside the other (a name inside a profile), so the narrowest first never fails
        where something else would do.
        """
        left = set(free)
        chosen: dict[int, str] = {}
        for place in sorted(range(len(self.slots)), key=lambda place: len(self.slots[place])):
            unit = next((unit for unit in self.slots[place] if unit in left), None)
            if unit is None:
                return None
            left.remove(unit)
            chosen[place] = unit
        return tuple(chosen[place] for place in sorted(chosen))


def matching(item: str, units: Sequence[Unit]) -> tuple[Unit, ...]:
    """The units that one item names; none if there is no such GPU here. :raises UsageError: it names nothing at all."""
    if item == "all":
        return tuple(units)
    if item.isascii() and item.isdigit():
        return tuple(unit for unit in units if _is_index(unit, item) and unit.vendor == _first(units))
    vendor, _, index = item.partition(":")
    if vendor in _VENDORS and index.isascii() and index.isdigit():
        return tuple(unit for unit in units if _is_index(unit, index) and unit.vendor == vendor)
    if vendor == "mig" and index:
        return tuple(unit for unit in units if not unit.whole and unit.profile == index)
    if item.startswith(("GPU-", "MIG-")) and len(item) > 4:
        low = item.lower()
        found = [unit for unit in units if (unit.uuid or "").lower().startswith(low)]
        return tuple([unit for unit in found if (unit.uuid or "").lower() == low] or found)
    if is_address(item):
        address = normal_address(item)
        return tuple(unit for unit in units if unit.whole and normal_address(unit.pci_address) == address)
    raise UsageError(
        f"{item!r} names no GPU",
        hint="write a number of GPUs (2), indexes (0,3 or nvidia:0), UUIDs, mig:PROFILE, all, or none",
    )


def _is_index(unit: Unit, digits: str) -> bool:
    return unit.whole and str(unit.index) == (digits.lstrip("0") or "0")


def _first(units: Sequence[Unit]) -> str:
    """Bare numbers count NVIDIA's GPUs, or where there are none those of the next vendor: a processor's own graphics
    is not what somebody means who asks for two GPUs.
    """
    vendors = {unit.vendor for unit in units}
    return next((vendor for vendor in _VENDORS if vendor in vendors), "nvidia")


def parse_request(text: str, units: Sequence[Unit]) -> Request:
    """:raises UsageError: it makes no sense. :raises NotFound: this host has no such GPU, or not so many."""
    words = [word.strip() for word in text.split(",")]
    if words == ["none"]:
        return Request(text, ())
    if len(words) == 1 and words[0].isascii() and words[0].isdigit():
        return _counted(text, int(words[0][:9]), units)
    slots: list[tuple[str, ...]] = []
    named: set[str] = set()
    for word in filter(None, words):
        found = matching(word, units)
        if not found:
            raise NotFound(f"there is no GPU {word} here", hint=_what_there_is(units))
        if word == "all":
            slots += [(unit.id,) for unit in found]
        elif word.startswith("mig:"):
            slots.append(tuple(unit.id for unit in found))
        elif len(found) > 1:
            names = ", ".join(unit.id for unit in found)
            raise UsageError(f"{word} names {len(found)} GPUs", hint=f"write one of {names}")
        elif found[0].id in named:
            raise UsageError(f"{text}: {found[0]} is named twice")
        else:
            named.add(found[0].id)
            slots.append((found[0].id,))
    if not slots:
        raise UsageError(f"{text!r} names no GPU", hint="none is written none")
    request = Request(text, tuple(slots))
    if request.assign(request.wanted) is None:
        raise NotFound(f"{text} asks for more than this host has", hint=_what_there_is(units))
    return request


def _counted(text: str, count: int, units: Sequence[Unit]) -> Request:
    if count == 0:
        raise UsageError(
            "--gpus 0 can be read in two ways", hint="write nvidia:0 for the GPU with index 0, none for no GPU"
        )
    whole = tuple(unit.id for unit in units if unit.whole and unit.vendor == _first(units))
    if count > min(len(whole), _MOST):
        raise NotFound(f"{count} GPUs are asked for, this host has {len(whole)}", hint=_what_there_is(units))
    return Request(text, (whole,) * count)


def _what_there_is(units: Sequence[Unit]) -> str:
    return f"there is {'; '.join(map(str, units))}" if units else "no usable GPU was found here at all"
