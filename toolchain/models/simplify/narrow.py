"""Constants of element types that are narrower than a byte, or that no kernel supports, as wider ones.

The wider type holds the same numbers exactly, and their readers compute the same.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from toolchain.errors import InputError
from toolchain.models import protos
from toolchain.models.protos import STANDARD

_INTEGERS = {
    TensorProto.INT2: np.int8,
    TensorProto.INT4: np.int8,
    TensorProto.UINT2: np.uint8,
    TensorProto.UINT4: np.uint8,
}
_FLOATS = {
    TensorProto.FLOAT4E2M1,
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
    TensorProto.FLOAT8E8M0,
}
_BELOW_A_BYTE = {*_INTEGERS, TensorProto.FLOAT4E2M1}  # TVM has no tensors of these types


def widen_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose narrow constants are wider, if only DequantizeLinear or Cast reads them.

    Raises:
        InputError: Something else reads a constant that is narrower than a byte.
    """
    if not any(tensor.data_type in {*_INTEGERS, *_FLOATS} for tensor in proto.graph.initializer):
        return proto
    changed = protos.clone(proto)
    scaled, others = _readers(proto.graph)
    for tensor in changed.graph.initializer:
        kind: type | None = _INTEGERS.get(tensor.data_type)
        # Scales that are 8-bit floats are refused by name later.
        if tensor.data_type in _FLOATS and tensor.name not in scaled:
            kind = np.float32
        if kind and tensor.name not in others:
            values = numpy_helper.to_array(tensor).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        elif tensor.data_type in _BELOW_A_BYTE and tensor.name in others:
            name = TensorProto.DataType.Name(tensor.data_type).lower()
            raise InputError(
                f"constant {tensor.name} has the element type {name}",
                details=f"{others[tensor.name]}; numbers of less than 8 bits are supported as weights of "
                "DequantizeLinear and of Cast",
                hint="export the model with this constant as int8, uint8 or float32",
            )
    return changed


# Cast may read them, too.
def _readers(graph: onnx.GraphProto) -> tuple[set[str], dict[str, str]]:
    """Return the inputs of DequantizeLinear, and the other readers by tensor."""
    scaled: set[str] = set()
    others = {value.name: "the model returns it" for value in graph.output}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.domain in STANDARD:
            scaled.update(node.input)
        elif node.op_type != "Cast" or node.domain not in STANDARD:
            others |= dict.fromkeys(node.input, f"{node.op_type} node {node.name or node.output[0]!r} reads it")
    return scaled, others
