"""ONNX Runtime's quantized LSTM with the numbers that its weights stand for.

`com.microsoft.DynamicQuantizeLSTM` has weights of 8 bits, and ONNX Runtime rounds data and state to 8 bits as well, at
each step. Those errors feed back: its results may be far from those of the same weights in single precision, which we
compute. So the reference for such a file is the standard's LSTM with these weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from toolchain.models import protos

OPERATOR = "DynamicQuantizeLSTM"
_WEIGHTS = ((1, 8, 9), (2, 10, 11))
"""Positions of weights, scale and zero point among the inputs."""
_OF_LSTM = 8


def in_floats(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the standard's LSTM in place of these; itself if none has constant weights."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    indices = [
        index
        for index, node in enumerate(proto.graph.node)
        if node.op_type == OPERATOR
        and all(node.input[i] in tensors for weights, scale, _zero in _WEIGHTS for i in (weights, scale))
    ]
    if not indices:
        return proto
    changed = protos.clone(proto)
    for index in indices:
        node = changed.graph.node[index]
        inputs = list(node.input[:_OF_LSTM])
        for weights, scale, zero in _WEIGHTS:
            positions = (weights, scale, zero)
            values = [tensors.get(node.input[i]) if i < len(node.input) else None for i in positions]
            inputs[weights] = f"{node.output[0] or node.output[-1]}.weights{weights}"
            changed.graph.initializer.append(numpy_helper.from_array(_numbers(*values), inputs[weights]))
        plain = helper.make_node("LSTM", inputs, list(node.output), node.name)
        plain.attribute.extend(node.attribute)
        node.CopyFrom(plain)
    return changed


def _numbers(weights: Any, scale: Any, zero: Any) -> NDArray[np.float32]:
    """Return bytes [directions, inputs, gates] as numbers [directions, gates, inputs]."""
    integers, unit = (numpy_helper.to_array(tensor).astype(np.float32) for tensor in (weights, scale))
    middle = np.zeros_like(unit) if zero is None else numpy_helper.to_array(zero).astype(np.float32)
    rows = [tensor.reshape(len(integers), 1, -1) for tensor in (middle, unit)]
    return np.ascontiguousarray(((integers - rows[0]) * rows[1]).transpose(0, 2, 1))
