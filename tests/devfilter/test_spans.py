# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuiso.devfilter.spans import ALL_MAJORS, ALL_MINORS, Region, Spans, complement, intersect, union

TOP = 20
SPANS = st.lists(st.tuples(st.integers(0, TOP), st.integers(0, TOP)).map(lambda pair: (min(pair), max(pair)))).map(
    union
)


def numbers(spans: Spans) -> set[int]:
    return {number for low, high in spans for number in range(low, high + 1)}


def devices(region: Region) -> set[tuple[int, int]]:
    return {
        (major, minor)
        for low, high, minors in region.rows
        for major in range(low, min(high, TOP) + 1)
        for minor in numbers(intersect(minors, ((0, TOP),)))
    }


@given(SPANS, SPANS)
def test_spans_are_sets(left: Spans, right: Spans) -> None:
    assert numbers(union((*left, *right))) == numbers(left) | numbers(right)
    assert numbers(intersect(left, right)) == numbers(left) & numbers(right)
    assert numbers(complement(left, (0, TOP))) == set(range(TOP + 1)) - numbers(left)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(left))


@given(st.lists(st.tuples(st.sampled_from(["major", "minor"]), SPANS), max_size=6))
def test_what_is_taken_from_a_region_and_added_again(steps: list[tuple[str, Spans]]) -> None:
    region = Region.everything()
    expected, parts = devices(region), []
    for kind, spans in steps:
        taken = region.take_majors(spans) if kind == "major" else region.take_minors(spans)
        wanted = {(ma, mi) for ma, mi in expected if (ma if kind == "major" else mi) in numbers(spans)}
        assert devices(taken) == wanted
        expected -= wanted
        assert devices(region) == expected
        parts.append((taken, wanted))
    for taken, wanted in parts:
        region.add(taken)
        expected |= wanted
        assert devices(region) == expected
        assert region.rows == sorted(region.rows)
        assert all(a[1] < b[0] for a, b in pairwise(region.rows))
    assert region.size() == Region.everything().size()


def test_single_devices() -> None:
    region = Region([(1, 3, ((0, 9),))])
    taken = region.take_pairs([(1, 2), (3, 9)])
    assert taken.size() == 2
    assert region.size() == 28
    assert devices(taken) == {(1, 2), (3, 9)}
    assert Region.everything().size() == (ALL_MAJORS[1] + 1) * (ALL_MINORS[1] + 1)
