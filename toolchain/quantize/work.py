"""An estimate of how long a layer takes in floats: what it costs that a layer stays float.

No board is asked: a layer takes as long as its multiply-adds, or as its bytes where there are few multiply-adds for
each byte, as in products with a matrix of weights. The balance of the two is that of a usual processor.
"""

from __future__ import annotations

import math

import onnx

from toolchain.quantize.graph import Graph

_MULTIPLY_ADDS_PER_BYTE = 4.0  # that a core computes while memory brings a byte: 2 (Cortex-A72) to 6 (AVX2)
_FLOAT_BYTES = 4


def estimate(graph: Graph, node: onnx.NodeProto) -> float:
    """Return the estimated time of a convolution or product, in multiply-adds."""
    weight = graph.array(node.input[1])
    inputs, outputs = (graph.shapes.get(name, ()) for name in (node.input[0], node.output[0]))
    # A column of a matrix, or a filter, is used for each element of the output.
    filters = weight.shape[0] if node.op_type == "Conv" else math.prod(outputs[-1:])
    multiply_adds = math.prod(outputs) * weight.size / max(filters, 1) if outputs else weight.size
    moved = _FLOAT_BYTES * (weight.size + math.prod(inputs) + math.prod(outputs))
    return max(float(multiply_adds), _MULTIPLY_ADDS_PER_BYTE * moved)
