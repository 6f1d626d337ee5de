"""Tensors that one grid suits best: what is a part of another, or was put together of others, without arithmetic.

A maximum and a concatenation of bytes are bytes again where all are on one grid. With two of them, each number would be
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
            joined = [one for one in groups if one & group]
            groups = [one for one in groups if not one & group] + [group.union(*joined)]
    return tuple(groups)


def _sources(graph: Graph, name: str, tensors: Collection[str]) -> frozenset[str]:
    """Return the tensors of bytes whose numbers a tensor has; none if it has any of other tensors."""
    maker = graph.makers.get(name)
    if maker is None or maker.op_type not in _MOVING:
        return frozenset()
    found: set[str] = set()
    for read in filter(None, maker.input):
        more = {read} if read in tensors else _sources(graph, read, tensors)
        if not more:
            return frozenset()
        found |= more
    return frozenset(found)


def coarsest(grids: Mapping[str, Grid], groups: Sequence[frozenset[str]]) -> dict[str, Grid]:
    """Return grids with one for all of each set that is as coarse as its coarsest, and holds what each of them does."""
    found = dict(grids)
    for group in groups:
        members = [grids[name] for name in group]
        whole = reduce(Range.union, (one.range for one in members))
        least = max(one.exponent for one in members)
        found |= dict.fromkeys(group, whole.on(next(bits for bits in count(least) if whole.is_held(bits, BEYOND))))
    return found
