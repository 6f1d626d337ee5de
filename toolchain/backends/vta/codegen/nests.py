"""How a loop nest becomes one GEMM or ALU instruction: two loops of the machine around a sequence of micro-ops.

Micro-ops cost their transfer, the machine's loops a refill of its pipeline for each pass: the cheapest mixture is
taken. A sum can be added to again only after some steps, so a sequence runs over elements of ACC innermost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import prod

from toolchain.errors import BuildError

DISTANCE = 4
"""Steps after which an element of ACC may be written again."""

_REFILL_CYCLES = 10
_UOP_CYCLES = 0.5  # of its transfer


@dataclass(frozen=True)
class Loop:
    """One loop of a nest.

    Attributes:
        extent: Passes.
        dst: Elements of ACC from one pass to the next.
        src: Elements of the first operand's SRAM.
        wgt: Elements of WGT.
    """

    extent: int
    dst: int = 0
    src: int = 0
    wgt: int = 0

    @property
    def steps(self) -> tuple[int, int, int]:
        return self.dst, self.src, self.wgt

    def holds(self, inner: Loop) -> bool:
        """Whether this loop around the other is the same as one longer loop."""
        return self.steps == tuple(inner.extent * step for step in inner.steps)


UNIT = Loop(1)


@dataclass(frozen=True)
class Nest:
    """An instruction whose base addresses are not known yet.

    Attributes:
        outer: The outer of its loops.
        inner: The inner one.
        uops: dst, src and wgt of each micro-op, from the bases on.
    """

    outer: Loop
    inner: Loop
    uops: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _Division:
    """Which loops of a nest are the machine's, and which ones micro-ops."""

    outer: Loop
    inner: Loop
    sums: tuple[Loop, ...]
    outputs: tuple[Loop, ...]

    def group(self, min_uops: int) -> int:
        """Return the micro-ops of one pass over elements of ACC."""
        return max(min_uops, prod(loop.extent for loop in self.outputs))

    def uops(self, min_uops: int) -> int:
        return prod(loop.extent for loop in self.sums) * self.group(min_uops)

    def keeps(self, distance: int) -> bool:
        """Whether no element is written too early: the others between are real ones, or can be added."""
        return self.group(1) >= distance or not (self.outer.dst or self.inner.dst)

    def cost(self, min_uops: int, fresh: float) -> float:
        """Return an instruction's cycles beyond its steps, if a part of them needs fresh micro-ops."""
        return self.outer.extent * self.inner.extent * _REFILL_CYCLES + self.uops(min_uops) * _UOP_CYCLES * fresh


def plan_nest(loops: tuple[Loop, ...], most_uops: int, bases: int = 1, runs: int = 1, share: int = 1) -> Nest:
    """Return the cheapest instruction for a nest.

    Sums of fewer elements than the distance get micro-ops that write behind them, up to the distance.

    Args:
        loops: The nest, the outermost loop first.
        most_uops: Micro-ops that there is room for.
        bases: With how many different bases it may be run; each needs micro-ops of its own, which fit best together.
        runs: How often it is run.
        share: Its micro-ops fit best into one of so many parts of the room.

    Raises:
        BuildError: It needs more micro-ops than there is room for.
    """
    loops = merge_loops(loops)
    min_uops = DISTANCE if any(not loop.dst for loop in loops) else 1
    divisions = [
        division for variant in _variants(loops) for division in _divisions(variant) if division.keeps(min_uops)
    ]
    # Micro-ops that are used again cost their transfer once, so runs share the cost.
    room, fresh = most_uops // bases // share, min(1.0, bases / runs)
    fitting = [division for division in divisions if division.uops(min_uops) <= most_uops]
    if not fitting:
        needed = min(division.uops(min_uops) for division in divisions)
        raise BuildError(
            "a loop nest does not fit in UOP",
            details=f"{needed} micro-ops are needed, but there is room for {most_uops}",
        )
    # Micro-ops that fit beside those of other nests come first, then the cheapest.
    best = min(fitting, key=lambda division: (division.uops(min_uops) > room, division.cost(min_uops, fresh)))
    uops: list[tuple[int, int, int]] = []
    for start in _offsets(best.sums, (0, 0, 0)):
        group = list(_offsets(best.outputs, start))
        # Sums of few elements get micro-ops that write behind them: each step waits for the distance.
        uops += [*group, *((behind, *start[1:]) for behind in range(len(group), min_uops))]
    return Nest(best.outer, best.inner, tuple(uops))


def merge_loops(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the nest with neighbouring loops made one where they can be, and without those of one pass."""
    merged: list[Loop] = []
    for loop in loops:
        if merged and merged[-1].holds(loop):
            loop = Loop(merged.pop().extent * loop.extent, loop.dst, loop.src, loop.wgt)  # noqa: PLW2901
        if loop.extent > 1:
            merged.append(loop)
    return tuple(merged)


def _variants(loops: tuple[Loop, ...]) -> Iterator[tuple[Loop, ...]]:
    """Yield the nest itself, and with the last loop over ACC cut in two."""
    yield loops
    last = max((index for index, loop in enumerate(loops) if loop.dst), default=None)
    if last is None or len(loops) > 2:  # noqa: PLR2004 - longer nests have enough loops to choose from
        return
    loop = loops[last]
    for inside in range(2, loop.extent):
        if loop.extent % inside == 0:
            outside = Loop(loop.extent // inside, loop.dst * inside, loop.src * inside, loop.wgt * inside)
            yield (*loops[:last], outside, Loop(inside, loop.dst, loop.src, loop.wgt), *loops[last + 1 :])


def _divisions(loops: tuple[Loop, ...]) -> Iterator[_Division]:
    """Yield each way to take at most two loops for the machine."""
    # The machine has two loops; the others become micro-ops.
    for count in range(3):
        for chosen in combinations(range(len(loops)), count):
            outer, inner = [*(loops[index] for index in chosen), UNIT, UNIT][:2]
            rest = [loop for index, loop in enumerate(loops) if index not in chosen]
            sums, outputs = (
                tuple(loop for loop in rest if bool(loop.dst) is moves_output) for moves_output in (False, True)
            )
            yield _Division(outer, inner, sums, outputs)


def _offsets(loops: tuple[Loop, ...], start: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    if not loops:
        yield start
        return
    loop, *inner = loops
    for step in range(loop.extent):
        steps = (loop.dst, loop.src, loop.wgt)
        dst, src, wgt = (first + step * distance for first, distance in zip(start, steps, strict=True))
        yield from _offsets(tuple(inner), (dst, src, wgt))
