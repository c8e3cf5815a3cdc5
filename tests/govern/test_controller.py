# SPDX-License-Identifier: Apache-2.0
"""The controller against a simulated GPU: queued kernels that outlive a freeze, samples that come late and rounded."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuiso.govern.controller import Controller

STEP = 0.001
SAMPLE, LAG = 0.2, 0.06  # as measured on an H200


def simulate(
    rate: float,
    demand: Callable[[float], bool] = lambda _: True,
    *,
    seconds: float = 20,
    queue: float = 0.015,
    seed: int = 0,
) -> float:
    """The share of the GPU that a workload got. ``queue`` is how many seconds of kernels it submits ahead."""
    chance = random.Random(seed)
    controller = Controller(rate, 0.1)
    controller.advance(0)
    now = queued = busy = since_sample = sampled = 0.0
    pending: list[tuple[float, float, float]] = []
    while now < seconds:
        now += STEP
        if not controller.frozen and demand(now):
            queued = min(queued + 3 * STEP, queue)
        if queued > 0:
            queued = max(0.0, queued - STEP)
            busy += STEP
            since_sample += STEP
        if now - sampled >= SAMPLE:
            percent = round(100 * min(1.0, max(0.0, since_sample / (now - sampled) + chance.gauss(0, 0.01))))
            pending.append((now + LAG, now, percent / 100 * (now - sampled)))
            since_sample, sampled = 0.0, now
        if round(now / STEP) % 5 == 0:
            controller.advance(now)
            while pending and pending[0][0] <= now:
                _, until, used = pending.pop(0)
                controller.measured(until, used)
            controller.decide()
    return busy / seconds


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("queue", [0.002, 0.015, 0.05])
def test_a_loop_of_kernels_is_held_to_its_share(rate: float, queue: float) -> None:
    assert simulate(rate, queue=queue) == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_bursts_are_held_to_their_share(rate: float) -> None:
    def bursts(now: float) -> bool:
        return int(now / 0.4) % 2 == 0

    assert simulate(rate, bursts) == pytest.approx(rate, abs=0.03)


def test_a_share_above_the_demand_holds_nothing_back() -> None:
    def half(now: float) -> bool:
        return int(now / 0.05) % 2 == 0

    free = simulate(5.0, half)
    assert simulate(0.9, half) == pytest.approx(free, abs=0.01)


def test_an_idle_cgroup_is_never_frozen() -> None:
    controller = Controller(0.5, 0.1)
    for tick in range(2000):
        controller.advance(tick * 0.005)
        if tick % 40 == 0:
            controller.measured(tick * 0.005, 0.0)
        assert not controller.decide()


def test_what_an_idle_cgroup_saves_is_bounded() -> None:
    """After an hour of nothing a burst gets a second's credit, not an hour's."""
    assert simulate(0.25, lambda now: now > 10, seconds=20) * 20 == pytest.approx(2.5 + 0.25, abs=0.4)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0.01, 8),
    st.lists(st.tuples(st.floats(0.0005, 2), st.floats(0, 3), st.booleans()), max_size=60),
)
def test_no_order_of_events_breaks_it(rate: float, events: list[tuple[float, float, bool]]) -> None:
    controller = Controller(rate, 0.1)
    now = 0.0
    for step, used, sampled in events:
        now += step
        controller.advance(now)
        if sampled:
            controller.measured(now - 0.05, used)
        frozen = controller.decide()
        assert frozen == controller.frozen
        assert -2.0 * rate - 16.0 * sum(s for s, _, _ in events) <= controller.credit <= rate + 1e-9
