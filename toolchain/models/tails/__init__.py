"""Outputs whose size depends on the data: they get their greatest size, and a count of the elements that are valid.

A network is compiled for fixed sizes. NonZero, Compress and NonMaxSuppression get results of the greatest possible
size, and a count. What follows them is rewritten so that nothing valid depends on what lies behind the results
(`rules`). An output whose size depends on the data comes with one more output: how many of its elements along one axis
are the result. A model is refused if an operator would mix the results with what lies behind them.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper

from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.models.tails.graph import PREFIX, Tail, Unsupported
from toolchain.models.tails.rules import RULES
from toolchain.tensors import Bound

_SOURCES = ("NonZero", "NonMaxSuppression", "Compress")


def with_counts(proto: onnx.ModelProto, convertible: Collection[str]) -> tuple[onnx.ModelProto, dict[str, Bound]]:
    """Replace operators whose result's size depends on the data by ones that have a count as their second output.

    `convertible` has the names of operators that can be imported. Returns a changed copy, whose counts come behind its
    other outputs, and the bounds of outputs by name.

    Raises:
        InputError: What follows such an operator needs the number of its results; both are named.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    sources = [node for node in proto.graph.node if node.op_type in _SOURCES]
    # The result of a Compress with a constant condition has a known size.
    sources = [node for node in sources if node.op_type != "Compress" or node.input[1] not in constants]
    if not sources or not all(PREFIX + node.op_type in convertible for node in sources):
        return proto, {}
    tail = Tail.of(proto)
    try:
        tail.walk(proto.graph.node, RULES)
    except Unsupported as fault:
        raise _refusal(sources, fault) from fault
    # The walk has finished without an error: only now is there a model to change.
    changed = protos.clone(proto)
    return changed, _write_graph(changed, tail)


def _write_graph(proto: onnx.ModelProto, tail: Tail) -> dict[str, Bound]:
    bounds: dict[str, Bound] = {}
    counts: dict[str, str] = {}
    for value in proto.graph.output:
        name = tail.resolved(value.name)
        tail.materialize(name)
        if extent := tail.extents.get(name):
            count = tail.count(extent)
            if count not in counts:
                counts[count] = count if not count.startswith(PREFIX) else f"{value.name}.count"
                # A computed count is named after the output that it belongs to.
                if counts[count] != count:
                    tail.nodes.append(helper.make_node("Identity", [count], [counts[count]], counts[count]))
            bounds[value.name] = Bound(extent.axis, counts[count])
        if name != value.name:
            tail.nodes.append(helper.make_node("Identity", [name], [value.name], value.name))
    graph = proto.graph
    # Inferred shapes are those before the rewrite, so they go too.
    for field in ("node", "initializer", "value_info"):
        graph.ClearField(field)
    graph.node.extend(tail.nodes)
    graph.initializer.extend(tail.constants.values())
    graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1]) for name in counts.values())
    return bounds


def _refusal(sources: list[onnx.NodeProto], fault: Unsupported) -> InputError:
    """Return an error that names the operator with the results, and the node that cannot use them."""
    node = fault.node
    first = next((source for source in sources if source.output[0] == node.output[0]), None)
    first = first or next((source for source in sources if f"{source.output[0]}.count" in fault.roots), sources[0])
    name = first.name or first.output[0]
    reason = "the number of its results depends on the data"
    if node.output[0] != first.output[0]:
        reason += f", and {node.op_type} node {node.name or node.output[0]!r} uses them"
    return InputError(
        f"{first.op_type} node {name!r} cannot be compiled",
        details=f"{reason}: {fault.reason}" if fault.reason else reason,
        hint="end the network before it, and compute the rest in the application; export a detector without its "
        "suppression, or with an output of fixed size",
    )
