"""Outputs whose size depends on the data: as large as they can become, and how much of that counts.

A network is compiled for fixed sizes. What ends with NonZero, Compress or NonMaxSuppression gets an output of the
greatest size that there can be, and one more that says how many of its elements along one axis are the result. In the
middle of a network such an operator is refused: what follows would compute with elements that are none.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Mapping

import onnx
from onnx import helper

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
    ends = [index for index, node in enumerate(proto.graph.node) if _is_an_end(node, proto, convertible)]
    if not ends:
        return proto, {}
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    bounds = {}
    for index in ends:
        node = changed.graph.node[index]
        (name,) = node.output
        bound = Bound(_AXES[node.op_type](node), f"{name}.count")
        node.op_type = PREFIX + node.op_type
        node.output.append(bound.count)
        changed.graph.output.append(helper.make_tensor_value_info(bound.count, onnx.TensorProto.INT64, [1]))
        bounds[name] = bound
    return changed, bounds


def _is_an_end(node: onnx.NodeProto, proto: onnx.ModelProto, convertible: Collection[str]) -> bool:
    if node.op_type not in _AXES or PREFIX + node.op_type not in convertible:
        return False
    reads = collections.Counter(name for one in proto.graph.node for name in one.input)
    chosen_now = node.op_type == "Compress" and node.input[1] in {one.name for one in proto.graph.initializer}
    (name,) = node.output
    return not reads[name] and not chosen_now and any(value.name == name for value in proto.graph.output)
