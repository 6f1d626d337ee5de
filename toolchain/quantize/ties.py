"""Tensors that one scale suits best: what is a part of another, or was put together of others, without arithmetic.

A maximum and a concatenation of bytes are bytes again where all have one scale. With two of them, each number would be
rounded twice, and would have to be a float in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from toolchain.quantize.graph import Graph

_MOVING = ("MaxPool", "Concat")


def tied(graph: Graph, tensors: Collection[str]) -> tuple[frozenset[str], ...]:
    """Return the sets of tensors that are to have one scale each.

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


def coarsest(exponents: Mapping[str, int], groups: Sequence[frozenset[str]]) -> dict[str, int]:
    """Return exponents with the greatest one of each set for all of it: none saturates by it."""
    found = dict(exponents)
    for group in groups:
        found |= dict.fromkeys(group, max(exponents[name] for name in group))
    return found
