"""Outputs whose size depends on the data: as large as they can become, and how much of that counts.

A network is compiled for fixed sizes. What ends with NonZero, Compress or NonMaxSuppression gets an output of the
greatest size that there can be, and one more that says how many of its elements along one axis are the result. So do
the outputs of a tail behind such an operator that treats each result by itself (`tails`). Elsewhere in a network the
operator is refused: what follows would compute with elements that are not results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import onnx
from onnx import helper

from toolchain.models import tails
from toolchain.tensors import Bound

PREFIX = "toolchain."

# Along which axis an operator's only output depends on the data.
_AXES: Mapping[str, Callable[[onnx.NodeProto], int]] = {
    "NonZero": lambda _: 1,
    "NonMaxSuppression": lambda _: 0,
    "Compress": lambda node: next((item.i for item in node.attribute if item.name == "axis"), 0),
}


def with_counts(proto: onnx.ModelProto, convertible: Collection[str]) -> tuple[onnx.ModelProto, dict[str, Bound]]:
    """Replace operators at the end of a network by such that have a count as their second output.

    Args:
        proto: A model as it is imported; it stays as it is.
        convertible: Names of operators that can be imported.

    Returns:
        The model, whose counts come behind its other outputs, and the bounds of outputs by name.
    """
    ends = {index: axes for index, node in enumerate(proto.graph.node) if (axes := _ends(node, proto, convertible))}
    if not ends:
        return proto, {}
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    bounds: dict[str, Bound] = {}
    for index, axes in ends.items():
        node = changed.graph.node[index]
        count = f"{node.output[0]}.count"
        node.op_type = PREFIX + node.op_type
        node.output.append(count)
        changed.graph.output.append(helper.make_tensor_value_info(count, onnx.TensorProto.INT64, [1]))
        bounds |= {name: Bound(axis, count) for name, axis in axes.items()}
    return changed, bounds


def _ends(node: onnx.NodeProto, proto: onnx.ModelProto, convertible: Collection[str]) -> dict[str, int]:
    """Return the model's outputs that have the results of a node, and along which axis; none if it gets no count."""
    if node.op_type not in _AXES or PREFIX + node.op_type not in convertible:
        return {}
    if node.op_type == "Compress" and node.input[1] in {one.name for one in proto.graph.initializer}:
        return {}  # its size is known
    (name,), axis = node.output, _AXES[node.op_type](node)
    reads = {read for one in proto.graph.node for read in one.input}
    if name in reads:
        return tails.followed(proto, name, axis) if axis >= 0 else {}
    return {name: axis} if any(value.name == name for value in proto.graph.output) else {}
