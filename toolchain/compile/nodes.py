"""Which nodes of the model's file each call of a kernel computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from toolchain.models import flops, origins
from toolchain.models.origins import Origin
from toolchain.records.tasks import kernel_of


def nodes_by_call(module: tvm.IRModule, imported: tvm.IRModule) -> list[tuple[str, list[str]]]:
    """Return for each call of a kernel its name and the names of its nodes, the one with most of the work first.

    A call computes the node that its result comes from, and those before it whose results no other call returns. Where
    several kernels compute a node together, each of them names it; a change of layout names the node whose result it
    changes. If no pass kept the node of a call, it computes a part of what the next call does that reads its result.

    Args:
        module: The module with its kernels.
        imported: The imported module that it was made from.
    """
    calls = [(binding.var, name) for binding in origins.bindings(module) if (name := kernel_of(binding.value))]
    returned = {origin for variable, _ in calls if (origin := origins.returns(variable))}
    # A fused call has its last node alone; the nodes before it are found in the imported module.
    last_nodes, inputs = _last_nodes(module), _inputs(imported)
    return [
        (name, _names(_computed_nodes(last_nodes[variable], returned, inputs)) if variable in last_nodes else [])
        for variable, name in calls
    ]


def _last_nodes(module: tvm.IRModule) -> Mapping[Any, Origin]:
    """Return for each variable the node that it comes from, or else that of its first reader."""
    nodes: dict[Any, Origin] = {}
    for binding in reversed(list(origins.bindings(module))):
        origin = origins.of(binding.var) or nodes.get(binding.var)
        if origin is not None:
            nodes[binding.var] = origin
            # From the last binding to the first, so that the first reader is the last to write.
            for variable in relax.analysis.free_vars(binding.value):
                nodes[variable] = origin
    return nodes


def _inputs(imported: tvm.IRModule) -> Mapping[Origin, set[Origin]]:
    """Return the nodes whose results each node reads."""
    inputs: dict[Origin, set[Origin]] = defaultdict(set)
    for binding in origins.bindings(imported):
        origin = origins.of(binding.var)
        if origin is not None:
            sources = map(origins.of, relax.analysis.free_vars(binding.value))
            inputs[origin] |= {source for source in sources if source not in (None, origin)}
    return inputs


def _computed_nodes(last: Origin, returned: set[Origin], inputs: Mapping[Origin, set[Origin]]) -> list[Origin]:
    """Walk from a call's last node against the data flow, up to the nodes that other calls return."""
    computed, pending = {last}, [last]
    while pending:
        for origin in inputs.get(pending.pop(), set()) - returned - computed:
            computed.add(origin)
            pending.append(origin)
    return sorted(computed)


def _names(nodes: list[Origin]) -> list[str]:
    """Return the names of nodes; first that of a layer with counted operations, or else that of the last node."""
    main = next((node for node in nodes if node.operator in flops.COUNTED), nodes[-1])
    return [main.name, *(node.name for node in nodes if node != main)]
