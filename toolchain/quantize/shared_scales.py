"""Tensors that share a grid: maxima and concatenations of others, which are computed without arithmetic.

Maxima and concatenations of bytes are bytes again where all are on one grid. With two grids, each number would be
rounded twice, and would have to be a float in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import count

from toolchain.quantize.graph import Graph
from toolchain.quantize.ranges import BEYOND, Grid, Range

_MOVING = ("MaxPool", "Concat")


def tied(graph: Graph, tensors: Collection[str]) -> tuple[frozenset[str], ...]:
    """Return the sets of tensors that are to have one grid each.

    Args:
        graph: The float network.
        tensors: Those that become bytes.
    """
    groups: list[frozenset[str]] = []
    for name in tensors:
        sources = _sources(graph, name, tensors)
        if sources:
            group = sources | {name}
            # A tensor in two groups makes them one.
            joined = [other for other in groups if other & group]
            groups = [other for other in groups if not other & group] + [group.union(*joined)]
    return tuple(groups)


def _sources(graph: Graph, name: str, tensors: Collection[str]) -> frozenset[str]:
    """Return the tensors of bytes whose numbers a tensor has; none if it has any of other tensors."""
    maker = graph.makers.get(name)
    if maker is None or maker.op_type not in _MOVING:
        return frozenset()
    sources: set[str] = set()
    for read in filter(None, maker.input):
        more = {read} if read in tensors else _sources(graph, read, tensors)
        if not more:
            return frozenset()
        sources |= more
    return frozenset(sources)


def coarsest(grids: Mapping[str, Grid], groups: Sequence[frozenset[str]]) -> dict[str, Grid]:
    """Return grids with one for all of each set that is as coarse as its coarsest, and holds what each of them does."""
    result = dict(grids)
    for group in groups:
        members = [grids[name] for name in group]
        interval = reduce(Range.union, (grid.range for grid in members))
        lowest = max(grid.exponent for grid in members)
        result |= dict.fromkeys(
            group, interval.on(next(bits for bits in count(lowest) if interval.is_held(bits, BEYOND)))
        )
    return result
