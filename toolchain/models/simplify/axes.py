"""Axes that a file gives as a single number instead of a list, which ONNX Runtime takes too."""

from __future__ import annotations

import onnx

_AXES = 1  # input of Squeeze, Unsqueeze and the reductions, from opset 13 or 18 on
_TAKE_AXES = frozenset(
    {
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Squeeze",
        "Unsqueeze",
    }
)


def as_lists(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Make a list of one of each such number, in place."""
    scalars = {tensor.name: tensor for tensor in proto.graph.initializer if not tensor.dims}
    for node in proto.graph.node:
        if node.op_type in _TAKE_AXES and len(node.input) > _AXES and node.input[_AXES] in scalars:
            axes = onnx.TensorProto()
            axes.CopyFrom(scalars[node.input[_AXES]])
            axes.name = f"{node.output[0]}.axes"
            axes.dims.append(1)
            proto.graph.initializer.append(axes)
            node.input[_AXES] = axes.name
    return proto
