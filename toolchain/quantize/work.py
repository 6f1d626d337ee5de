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
    outputs = graph.shapes.get(node.output[0], (0,))
    read, written = math.prod(graph.shapes.get(node.input[0], (0,))), math.prod(outputs)
    # For each element of the output, a filter or a column of the matrix is multiplied.
    count = weight.shape[0] if node.op_type == "Conv" else max(outputs[-1], 1)
    return max(written * weight.size / count, _MULTIPLY_ADDS_PER_BYTE * _FLOAT_BYTES * (weight.size + read + written))
