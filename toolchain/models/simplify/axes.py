"""Axes that a file gives as a single number where the standard has a list of them, as ONNX Runtime takes them."""

from __future__ import annotations

import onnx

_AXES = 1  # input of each operator below


def as_lists(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Make a list of one of every single number that says along which axes a node works, in place."""
    scalars = {tensor.name: tensor for tensor in proto.graph.initializer if not tensor.dims}
    for node in proto.graph.node:
        takes_axes = node.op_type in {"Squeeze", "Unsqueeze"} or node.op_type.startswith("Reduce")
        if takes_axes and not node.domain and len(node.input) > _AXES and node.input[_AXES] in scalars:
            axes = onnx.TensorProto()
            axes.CopyFrom(scalars[node.input[_AXES]])
            axes.name = f"{node.output[0]}.axes"
            axes.dims.append(1)
            proto.graph.initializer.append(axes)
            node.input[_AXES] = axes.name
    return proto
