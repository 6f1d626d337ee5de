from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.backends.vta.codegen.nests import DISTANCE, UNIT, Loop, Nest, merge_loops, plan_nest
from toolchain.errors import BuildError

ROOM = 8192


def steps(loops: tuple[Loop, ...]) -> list[tuple[int, int, int]]:
    """Return what each step of a nest touches, in order."""
    touched = []
    for position in product(*(range(loop.extent) for loop in loops)):
        pairs = list(zip(position, loops, strict=True))
        touched.append(tuple(sum(n * getattr(loop, name) for n, loop in pairs) for name in ("dst", "src", "wgt")))
    return touched


def run(nest: Nest) -> list[tuple[int, int, int]]:
    """Return what an instruction touches, in order."""
    bases = steps((nest.outer, nest.inner))
    return [tuple(a + b for a, b in zip(base, uop, strict=True)) for base in bases for uop in nest.uops]


def distance(touched: list[tuple[int, int, int]]) -> int:
    """Return the least number of steps from one write of an element to the next."""
    last: dict[int, int] = {}
    shortest = len(touched) + DISTANCE
    for now, (dst, _, _) in enumerate(touched):
        shortest = min(shortest, now - last.get(dst, -len(touched) - DISTANCE))
        last[dst] = now
    return shortest


def convolution(co: int, h: int, w: int, ci: int, kh: int, kw: int) -> tuple[Loop, ...]:
    columns = w + kw - 1
    plane = (h + kh - 1) * columns
    return (
        Loop(co, h * w, 0, ci * kh * kw),
        Loop(h, w, columns, 0),
        Loop(w, 1, 1, 0),
        Loop(ci, 0, plane, kh * kw),
        Loop(kh, 0, columns, kw),
        Loop(kw, 0, 1, 1),
    )


SMALL = st.integers(1, 4)
CONVOLUTIONS = st.builds(convolution, SMALL, SMALL, SMALL, SMALL, st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None)
@given(CONVOLUTIONS, st.sampled_from([1, 8]), st.sampled_from([1, 100]))
def test_the_steps_of_a_convolution(loops, bases, runs):
    nest = plan_nest(loops, ROOM, bases, runs)
    expected = Counter(steps(loops))
    destinations = {dst for dst, _, _ in expected}
    actual = [step for step in run(nest) if step[0] in destinations]
    assert Counter(actual) == expected
    assert distance(run(nest)) >= DISTANCE


@settings(deadline=None)
@given(CONVOLUTIONS)
def test_what_fills_the_distance_lies_right_behind(loops):
    touched = run(plan_nest(loops, ROOM))
    destinations = {dst for dst, _, _ in steps(loops)}
    assert max(dst for dst, _, _ in touched) < max(len(destinations), DISTANCE)


@settings(deadline=None)
@given(st.integers(1, 600), st.integers(1, 4))
def test_elementwise(pixels, channels):
    loops = (Loop(channels, pixels, 1), Loop(pixels, 1, 0))
    assert Counter(run(plan_nest(loops, ROOM))) == Counter(steps(loops))


def test_one_element_needs_no_more_than_one_step():
    assert plan_nest((Loop(1, 1),), ROOM) == Nest(UNIT, UNIT, ((0, 0, 0),))


def test_one_sum_gets_others_behind_it():
    loop = Loop(ROOM, 0, 1, 1)
    assert plan_nest((loop,), ROOM) == Nest(loop, UNIT, ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)))


def test_loops_that_are_one():
    assert merge_loops((Loop(2, 12), Loop(3, 4), Loop(1, 7), Loop(4, 1))) == (Loop(24, 1),)
    assert merge_loops((Loop(2, 12, 1), Loop(3, 4, 0))) == (Loop(2, 12, 1), Loop(3, 4, 0))
    assert merge_loops((Loop(1, 5),)) == ()


def test_a_long_loop_is_cut():
    nest = plan_nest((Loop(784, 1),), ROOM)
    assert len(nest.uops) < 784
    assert 1 < nest.outer.extent * nest.inner.extent < 784


def test_fewer_micro_ops_where_they_are_loaded_often():
    loops = convolution(4, 8, 28, 2, 3, 3)
    assert len(plan_nest(loops, ROOM, 4, 4).uops) < len(plan_nest(loops, ROOM, 4, 1000).uops)


def test_all_sequences_fit_together_where_they_can():
    loops = convolution(8, 7, 14, 4, 3, 3)
    assert len(plan_nest(loops, ROOM, 8, 1000).uops) <= ROOM // 8 < len(plan_nest(loops, ROOM, 1, 1000).uops)


def test_what_does_not_fit_together_still_fits_alone():
    loops = convolution(2, 1, 14, 1, 3, 3)
    assert len(plan_nest(loops, 128, 8, 56).uops) <= 128


def test_too_many():
    with pytest.raises(BuildError, match="UOP") as caught:
        plan_nest(convolution(3, 3, 3, 3, 3, 3), 20)
    assert "room for 20" in caught.value.details
