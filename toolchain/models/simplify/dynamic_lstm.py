"""ONNX Runtime's quantized LSTM with the numbers that its weights stand for.

`com.microsoft.DynamicQuantizeLSTM` has weights of 8 bits, and ONNX Runtime rounds data and state to 8 bits as well, at
each step. Those errors feed back: its results may be far from those of the same weights in single precision, which we
compute. So the reference for such a file is the standard's LSTM with these weights.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.models import protos

OPERATOR = "DynamicQuantizeLSTM"
_WEIGHTS = ((1, 8, 9), (2, 10, 11))  # positions of weights, scale and zero point among the inputs
_OF_LSTM = 8


def in_floats(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the standard's LSTM in place of these; the same model if none has constant weights."""
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
            arrays = [
                numpy_helper.to_array(tensors[node.input[i]]).astype(np.float32)
                for i in positions
                if i < len(node.input) and node.input[i] in tensors
            ]
            # Bytes [directions, inputs, gates]; scale and zero are for each direction, or for each of its gates.
            integers, unit = arrays[:2]
            middle = arrays[-1] if len(arrays) == len(positions) else np.zeros_like(unit)
            shape = (len(integers), 1, -1)
            numbers = (integers - middle.reshape(shape)) * unit.reshape(shape)
            inputs[weights] = f"{node.output[0] or node.output[-1]}.weights{weights}"
            # The standard's LSTM has [directions, gates, inputs].
            transposed = np.ascontiguousarray(numbers.transpose(0, 2, 1))
            changed.graph.initializer.append(numpy_helper.from_array(transposed, inputs[weights]))
        plain = helper.make_node("LSTM", inputs, list(node.output), node.name)
        plain.attribute.extend(node.attribute)
        node.CopyFrom(plain)
    return changed
