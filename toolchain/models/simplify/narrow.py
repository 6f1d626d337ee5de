"""Weights of 4 bits as bytes that hold the same whole numbers: what is imported knows nothing narrower."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_WIDER = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
_READS_BYTES = frozenset({"DequantizeLinear"})  # with the same result, whatever holds its whole numbers


def widened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose 4-bit weights are bytes, and so are their zeros; in place.

    Those that something else than DequantizeLinear reads stay, and are refused by name later.
    """
    others = {name for node in proto.graph.node if node.op_type not in _READS_BYTES for name in node.input}
    others |= {value.name for value in proto.graph.output}
    for tensor in proto.graph.initializer:
        if tensor.data_type in _WIDER and tensor.name not in others:
            whole = numpy_helper.to_array(tensor).astype(_WIDER[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(whole, tensor.name))
    return proto
