"""Weights of a few bits with a scale for each block of inputs: MatMulNBits, and DequantizeLinear in blocks.

They stay as they are in the imported module: arguments of a kernel with the attribute `PACKED`, which makes float32 of
them. A backend that computes with such weights finds its calls; any other folds them into constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te

from toolchain.models.converters import Node, converter

PACKED = "toolchain.packed"
"""Attribute of a kernel that makes float32 of packed weights: how many inputs share a scale."""
ROUNDS = "toolchain.packed.rounds"
"""Attribute of such a kernel if the data of its product may be rounded to int8."""

_BYTE = 8
_BITS = (2, 4, 8)
_MATRIX, _FILTER = 2, 4  # axes
_ACCURACY, _OF_8_BITS = "accuracy_level", 4  # of MatMulNBits, in ONNX Runtime's ContribOperators.md


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """The weights scales[n, k // block] * (numbers[n, k] - zeros[n, k // block]).

    Attributes:
        numbers: int8 [outputs, inputs], around the middle of their range.
        scales: float32 [outputs, blocks].
        zeros: The same; None where all are 0.
        block: Inputs that share a scale; the last block may have fewer.
        rounds: Whether data may be rounded to int8, with a scale for each block of a row.
    """

    numbers: NDArray[np.int8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.float32] | None
    block: int
    rounds: bool = False

    @property
    def bits(self) -> int:
        """Bits that each number takes: 4 or 8."""
        return 4 if not self.numbers.size or (self.numbers.min() >= -8 and self.numbers.max() <= 7) else 8  # noqa: PLR2004 - limits of 4 bits

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return [self.numbers, self.scales, *([] if self.zeros is None else [self.zeros])]

    def unpacked(self) -> NDArray[np.float32]:
        """Return the weights as float32, [outputs, inputs]."""
        repeated = [self._of_inputs(array) for array in self.arrays[1:]]
        above = self.numbers.astype(np.float32)
        if self.zeros is not None:
            above -= repeated[1]
        above *= repeated[0]
        return above

    def _of_inputs(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array.repeat(self.block, axis=1)[:, : self.numbers.shape[1]]


def of_arrays(arrays: Sequence[NDArray[Any]], block: int, *, rounds: bool = False) -> PackedWeights:
    """Return the weights that a kernel with the attribute `PACKED` has as arguments."""
    numbers, scales, *zeros = arrays
    return PackedWeights(numbers, scales, zeros[0] if zeros else None, block, rounds)


def emit(node: Node, weights: PackedWeights) -> Any:
    """Bind packed weights as float32 [outputs, inputs]."""
    block = weights.block

    def unpack(numbers: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        def element(output: Any, number: Any) -> Any:
            above = numbers[output, number].astype("float32")
            if zeros:
                above -= zeros[0][output, number // block]
            return above * scales[output, number // block]

        return te.compute(numbers.shape, element, name="unpacked")

    constants = [relax.const(np.ascontiguousarray(array), str(array.dtype)) for array in weights.arrays]
    attributes = {PACKED: str(block), **({ROUNDS: "1"} if weights.rounds else {})}
    return node.builder.emit_te(unpack, *constants, primfunc_name_hint="unpack_weights", primfunc_attrs=attributes)


# --- MatMulNBits -----------------------------------------------------------------------------------------------------


# `accuracy_level` is the least exact type that data may be rounded to.
@converter("com.microsoft.MatMulNBits")
def matmul_n_bits(node: Node) -> Any:
    if node.input(4) is not None:
        raise node.refusal("g_idx, an order of the inputs, is not supported")
    if node.attributes.get("weight_prepacked", 0):
        raise node.refusal("its weights are in an order of ONNX Runtime's own (weight_prepacked)")
    rounds = node.attributes.get(_ACCURACY, 0) == _OF_8_BITS
    weights, dtype = replace(_weights_of_few_bits(node), rounds=rounds), node.dtype(0)
    if dtype == "float32":
        matrix = node.emit(relax.op.permute_dims(emit(node, weights)))
    else:
        matrix = node.emit(relax.const(weights.unpacked().T.astype(dtype), dtype))
    product, bias = node.emit(relax.op.matmul(node.inputs[0], matrix)), node.input(5)
    return product if bias is None else relax.op.add(product, bias)


def _weights_of_few_bits(node: Node) -> PackedWeights:
    bits = int(node.attributes.get("bits", 4))
    if bits not in _BITS:
        raise node.refusal(f"its weights are of {bits} bits; {', '.join(map(str, _BITS))} are supported")
    outputs, inputs, block = (int(node.attributes[name]) for name in ("N", "K", "block_size"))
    packed, scales, zeros = (node.constant(index) for index in (1, 2, 3))
    if packed is None or scales is None:
        raise node.refusal("it has no weights")
    blocks, middle = -(-inputs // block), 1 << (bits - 1)
    if packed.size * _BYTE != outputs * blocks * block * bits or scales.size != outputs * blocks:
        raise node.refusal(
            f"its weights are {'x'.join(map(str, packed.shape))} and its scales {'x'.join(map(str, scales.shape))}, "
            f"which is not N={outputs}, K={inputs} in blocks of {block} and {bits} bits"
        )
    numbers = _split_bytes(packed.reshape(outputs, -1), bits)[:, :inputs]
    # Without zero points, the numbers lie evenly around the middle of their range.
    above = None
    if zeros is not None and zeros.dtype == np.uint8:
        above = _split_bytes(zeros.reshape(outputs, -1), bits)[:, :blocks].astype(np.float32) - middle
    elif zeros is not None:
        above = zeros.reshape(outputs, blocks).astype(np.float32) - middle
    return _centred(numbers.astype(np.int16) - middle, scales.reshape(outputs, blocks), above, block)


def _centred(numbers: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any] | None, block: int) -> PackedWeights:
    kept = zeros.astype(np.float32) if zeros is not None and zeros.any() else None
    return PackedWeights(numbers.astype(np.int8), scales.astype(np.float32), kept, block)


def _split_bytes(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return the numbers in bytes, the lowest bits first."""
    shifts = np.arange(0, _BYTE, bits, dtype=np.uint8)
    numbers: NDArray[np.uint8] = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


# --- DequantizeLinear in blocks --------------------------------------------------------------------------------------


def of_blocks(
    whole: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], axis: int, block: int
) -> PackedWeights | None:
    """Return a constant matrix of bytes on a grid of blocks as packed weights, whose inputs are along `axis`.

    The weights of a 1x1 convolution are such a matrix. It is None if the constant is none.
    """
    if whole.ndim == _FILTER and whole.shape[_MATRIX:] == (1, 1) and axis == 1:
        whole, scales, zeros = (array.reshape(array.shape[:_MATRIX]) for array in (whole, scales, zeros))
    if whole.ndim != _MATRIX or whole.dtype not in (np.int8, np.uint8):
        return None
    if axis == 0:
        whole, scales, zeros = whole.T, scales.T, zeros.T
    # Types of 4 bits were widened to bytes, where unsigned ones lie around 8.
    middle = 0 if whole.dtype == np.int8 else 8 if whole.size and whole.max() < 16 else 128  # noqa: PLR2004
    return _centred(whole.astype(np.int16) - middle, scales, zeros.astype(np.float32) - middle, block)
