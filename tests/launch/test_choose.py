# SPDX-License-Identifier: Apache-2.0
"""Who gets which GPUs."""

from __future__ import annotations

from gpuiso.grants.spec import parse_request
from gpuiso.launch.choose import choose
from gpuiso.launch.lease import Lease, Ticket
from tests.launch.parts import gpus, mig_gpu

UNITS = gpus(4)


def ticket(number: int, text: str, *, share: bool = False, user: int = 0, most: int | None = None) -> Ticket:
    units = (*UNITS, *mig_gpu(4, "1g.18gb", "1g.18gb"))
    return Ticket(number, number, user, parse_request(text, units).slots, share, most, 0, text)


def lease(*units: str, share: bool = False, user: int = 0) -> Lease:
    pairs = tuple((unit, unit) for unit in units)
    return Lease("1", "job", pairs, share, user, "alice", ("job",), 1, 0, 0)


def test_the_first_free_ones() -> None:
    assert choose(UNITS, ticket(1, "2"), [lease("GPU-0", "GPU-2")]).units == ("GPU-1", "GPU-3")


def test_why_not() -> None:
    choice = choose(UNITS, ticket(1, "0,"), [lease("GPU-0")])
    assert choice.units is None
    assert choice.why == "GPU 0 (GPU-0) is leased by job of alice"


def test_who_came_earlier_keeps_what_it_waits_for() -> None:
    """Four are wanted, one is leased: the other three stay free for that one, but not one who wants something else."""
    leases, first = [lease("GPU-0")], ticket(1, "4")
    assert choose(UNITS, ticket(2, "1"), leases, [first]).units is None
    narrow = ticket(1, "0,1")
    assert choose(UNITS, ticket(2, "3,"), leases, [narrow]).units == ("GPU-3",)
    assert choose(UNITS, ticket(2, "1"), leases, [narrow]).units == ("GPU-2",)


def test_one_who_cannot_wait_may_pass_those_who_will_be_served_anyway() -> None:
    earlier = [ticket(1, "2")]
    assert choose(UNITS, ticket(2, "2"), [], earlier).units is None
    assert choose(UNITS, ticket(2, "2"), [], earlier, last=True).units == ("GPU-2", "GPU-3")
    assert choose(UNITS, ticket(2, "3"), [], earlier, last=True).units is None
    assert choose(UNITS, ticket(2, "1"), [lease("GPU-0")], [ticket(1, "4")], last=True).units is None


def test_one_at_the_limit_holds_nobody_up() -> None:
    leases = [lease("GPU-0", user=7)]
    assert choose(UNITS, ticket(2, "1"), leases, [ticket(1, "3", user=7, most=2)]).units == ("GPU-1",)
    refused = choose(UNITS, ticket(3, "2", user=7, most=2), leases)
    assert refused.units is None
    assert refused.why == "the user may have at most 2 GPUs at a time, has 1, and asks for 2"


def test_sharing() -> None:
    """Only where both share, and those with the fewest sharers first."""
    exclusive, shared = [lease("GPU-0")], [lease("GPU-0", share=True)]
    assert choose(UNITS, ticket(1, "0,", share=True), exclusive).units is None
    assert choose(UNITS, ticket(1, "0,"), shared).units is None
    assert choose(UNITS, ticket(1, "0,", share=True), shared).units == ("GPU-0",)
    assert choose(UNITS, ticket(1, "1", share=True), shared).units == ("GPU-1",)


def test_gpus_in_use_without_a_lease_are_avoided_or_named() -> None:
    busy = {"GPU-0": "GPU 0 is used by process 12, which has no lease"}
    assert choose(UNITS, ticket(1, "1"), [], busy=busy).units == ("GPU-1",)
    assert choose(UNITS, ticket(1, "0,"), [], busy=busy).why == busy["GPU-0"]


def test_mig_devices_of_one_gpu_are_apart() -> None:
    units = (*UNITS, *mig_gpu(4, "1g.18gb", "1g.18gb"))
    taken = Lease("1", "job", (("MIG-4-0", "GPU-4"),), False, 0, "root", (), 1, 0, 0)
    assert choose(units, ticket(1, "mig:1g.18gb"), [taken]).units == ("MIG-4-1",)
    assert choose(units, ticket(1, "mig:1g.18gb"), [lease("GPU-4")]).units is None
