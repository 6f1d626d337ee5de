"""Which nodes of the model's file each call of a kernel computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import tvm
from tvm import relax

from toolchain.models import flops, origins
from toolchain.models.origins import Origin
from toolchain.records.tasks import kernel_of


def of_calls(module: tvm.IRModule, imported: tvm.IRModule) -> list[tuple[str, list[str]]]:
    """Return for each call of a kernel its name, and the names of the nodes: the one with most of the work first.

    A call computes the node that its result comes from, and those before it whose results no other call returns. Where
    several kernels compute a node together, each of them names it; a change of layout names the node whose result it
    changes. A call of which no pass knows the node computes a part of what the next one does that reads its result.

    Args:
        module: The module with its kernels.
        imported: The module that it was made of, as it was imported.
    """
    ends = _ends(module)
    calls = [(name, ends.get(variable)) for variable, name in _calls(module)]
    own = {origin for variable, _ in _calls(module) if (origin := origins.returns(variable))}
    before = _before(imported)
    return [(name, _names(_computed(end, own, before)) if end else []) for name, end in calls]


def _calls(module: tvm.IRModule) -> Iterator[tuple[Any, str]]:
    """Yield the variable and the kernel's name of each call of a kernel."""
    for binding in origins.bindings(module):
        if name := kernel_of(binding.value):
            yield binding.var, name


def _ends(module: tvm.IRModule) -> Mapping[Any, Origin]:
    """Return for each variable the node that it comes from, or else that of what reads it first."""
    found: dict[Any, Origin] = {}
    for binding in reversed(list(origins.bindings(module))):
        origin = origins.of(binding.var) or found.get(binding.var)
        if origin is not None:
            found[binding.var] = origin
            for variable in relax.analysis.free_vars(binding.value):
                found[variable] = origin
    return found


def _before(imported: tvm.IRModule) -> Mapping[Origin, set[Origin]]:
    """Return the nodes whose results each node reads."""
    found: dict[Origin, set[Origin]] = defaultdict(set)
    for binding in origins.bindings(imported):
        origin = origins.of(binding.var)
        read = map(origins.of, relax.analysis.free_vars(binding.value))
        if origin is not None:
            found[origin] |= {other for other in read if other not in (None, origin)}
    return found


def _computed(end: Origin, own: set[Origin], before: Mapping[Origin, set[Origin]]) -> list[Origin]:
    found, open_ = {end}, [end]
    while open_:
        for origin in before.get(open_.pop(), set()) - own - found:
            found.add(origin)
            open_.append(origin)
    return sorted(found)


def _names(nodes: list[Origin]) -> list[str]:
    """Return the names of nodes, first the one with most of the work: a layer that is counted, or else the last one."""
    main = next((node for node in nodes if node.operator in flops.COUNTED), nodes[-1])
    return [main.name, *(node.name for node in nodes if node != main)]
