"""Weights of a few bits in a file: how many layers have them, and what they take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from toolchain.models import protos

MATMUL = "MatMulNBits"
_BITS = {
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
}
_MATRIX = 2  # axes


@dataclass(frozen=True)
class FewBits:
    """Matrices of weights with a scale for each block of inputs.

    Attributes:
        matrices: How many there are.
        bits: Bits of a weight; several if they differ.
        weights: Weights of all of them.
        bytes: What they take in the file, without scales and zero points.
    """

    matrices: int
    bits: tuple[int, ...]
    weights: int
    bytes: int

    def __str__(self) -> str:
        bits = " and ".join(map(str, self.bits))
        size, as_float = (f"{count / 1e6:.2f}" for count in (self.bytes, 4 * self.weights))
        return f"{self.matrices} matrices of {bits} bits in blocks: {size} MB without scales, {as_float} MB in float32"


def measure(graph: onnx.GraphProto) -> FewBits | None:
    """Count the matrices of few bits that a graph reads; None if there are none."""
    matrices = list(_matrices(graph))
    if not matrices:
        return None
    total = sum(bits * weights for bits, weights in matrices)
    return FewBits(
        len(matrices), tuple(sorted({bits for bits, _ in matrices})), sum(count for _, count in matrices), total // 8
    )


def _matrices(graph: onnx.GraphProto) -> Iterator[tuple[int, int]]:
    """Yield bits and number of weights of each matrix."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == MATMUL:
            bits, rows, columns = (protos.get_attribute(node, name) for name in ("bits", "N", "K"))
            yield int(bits or 4), int(rows) * int(columns)
        tensor = tensors.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        in_blocks = tensor is not None and protos.get_attribute(node, "block_size")
        if tensor is not None and in_blocks and tensor.data_type in _BITS and len(tensor.dims) == _MATRIX:
            yield _BITS[tensor.data_type], math.prod(tensor.dims)
