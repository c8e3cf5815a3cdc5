# SPDX-License-Identifier: Apache-2.0
"""Who gets which GPUs: pure decisions about a request, the leases there are, and those who came earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuiso.grants.spec import Request
from gpuiso.grants.units import Unit, overlap
from gpuiso.launch.lease import Lease, Ticket

__all__ = ["Choice", "choose", "held_by", "obstacles", "taken_by"]


@dataclass(frozen=True)
class Choice:
    """``units`` are the ids that are free for a request, None if there are not enough; then ``why`` says so."""

    units: tuple[str, ...] | None
    why: str = ""


def held_by(leases: Sequence[Lease], user: int) -> int:
    """How many units a user has leased."""
    return sum(len(lease.units) for lease in leases if lease.user == user)


def taken_by(leases: Sequence[Lease], units: Sequence[Unit], *, share: bool) -> frozenset[str]:
    """The ids of the units that leases keep from somebody new."""
    return frozenset(unit.id for unit in units if _blocking(unit, leases, share=share) is not None)


def obstacles(
    units: Sequence[Unit], ticket: Ticket, leases: Sequence[Lease], earlier: Sequence[Ticket], *, last: bool = False
) -> dict[str, str]:
    """Why a unit cannot be had by ``ticket``, by its id.

    A GPU that somebody waits for who came earlier is not to be had, even while it is free: otherwise one who wants
    many would wait for ever. With ``last`` (the ticket cannot wait) those of the earlier ones who could be served now
    keep only what they would get.
    """
    found = {}
    for unit in units:
        blocking = _blocking(unit, leases, share=ticket.share)
        if blocking is not None:
            found[unit.id] = f"{unit} is leased by {blocking.name} of {blocking.user_name}"
    by_id = {unit.id: (unit.id, unit.gpu) for unit in units}
    reserved = [by_id[name] for name in _reserved(units, leases, earlier, last=last) if name in by_id]
    for unit in units:
        if unit.id not in found and overlap((unit.id, unit.gpu), reserved):
            found[unit.id] = f"{unit} is waited for by an earlier request"
    return found


def _blocking(unit: Unit, leases: Sequence[Lease], *, share: bool) -> Lease | None:
    """A lease that keeps others from a unit."""
    holders = (lease for lease in leases if overlap((unit.id, unit.gpu), lease.units))
    return next((lease for lease in holders if not (lease.share and share)), None)


def _reserved(units: Sequence[Unit], leases: Sequence[Lease], earlier: Sequence[Ticket], *, last: bool) -> set[str]:
    """What is kept for those who came earlier; not for one whose user's limit is reached, who could not take it."""
    kept: set[str] = set()
    for other in earlier:
        if other.most is not None and held_by(leases, other.user) + len(other.slots) > other.most:
            continue
        request = Request(other.text, other.slots)
        free = [unit.id for unit in units if unit.id not in kept and not _blocking(unit, leases, share=other.share)]
        served = request.assign(free) if last else None
        kept.update(request.wanted if served is None else served)
    return kept


def choose(
    units: Sequence[Unit],
    ticket: Ticket,
    leases: Sequence[Lease],
    earlier: Sequence[Ticket] = (),
    busy: Mapping[str, str] | None = None,
    *,
    last: bool = False,
) -> Choice:
    """Units for a ticket. ``busy`` says of units that are in use without a lease by whom; ``last`` as in obstacles."""
    if ticket.most is not None and held_by(leases, ticket.user) + len(ticket.slots) > ticket.most:
        have = held_by(leases, ticket.user)
        more = f"at most {ticket.most} GPU{'' if ticket.most == 1 else 's'} at a time"
        return Choice(None, f"the user may have {more}, has {have}, and asks for {len(ticket.slots)}")
    request = Request(ticket.text, ticket.slots)
    blocked = {**obstacles(units, ticket, leases, earlier, last=last), **(busy or {})}
    load = {unit.id: sum(overlap((unit.id, unit.gpu), lease.units) for lease in leases) for unit in units}
    if ticket.share:
        ordered = tuple(tuple(sorted(slot, key=lambda unit: load.get(unit, 0))) for slot in request.slots)
        request = Request(request.text, ordered)
    chosen = request.assign([unit.id for unit in units if unit.id not in blocked])
    if chosen is not None:
        return Choice(chosen)
    reasons = [why for name, why in blocked.items() if name in request.wanted]
    return Choice(None, "; ".join(reasons) or "there are not enough GPUs")
