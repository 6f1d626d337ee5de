"""Weights that are zero in blocks: how many a model has, and models in which blocks are made zero to try it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from toolchain.errors import InputError
from toolchain.models import protos

BLOCKS = ((16, 1), (8, 1), (4, 1))
"""Blocks, outputs by inputs, that `Sparsity` counts: those of vectors of 16, 8 and 4 floats."""

_BLOCK = re.compile(r"([1-9][0-9]{0,2})x([1-9][0-9]{0,2})")
_LEAST_INPUTS = 16  # of layers that are pruned: the first one of a network reads a picture


@dataclass(frozen=True)
class Block:
    """A block of weights: so many outputs of so many inputs, for each tap of a filter."""

    outputs: int
    inputs: int

    def __str__(self) -> str:
        return f"{self.outputs}x{self.inputs}"


def parse_block(text: str) -> Block:
    """Parse `OUTPUTSxINPUTS`.

    Raises:
        InputError: It is something else.
    """
    match = _BLOCK.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not a block of weights", hint="write outputs x inputs, such as 16x1")
    return Block(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Sparsity:
    """How many weights of convolutions and fully connected layers are zero, as shares.

    Attributes:
        zeros: Weights.
        blocks: Blocks, by their shape.
    """

    zeros: float
    blocks: dict[str, float]


@dataclass(frozen=True)
class PrunedLayer:
    """A layer in which blocks were made zero.

    Attributes:
        shape: Shape of its weights in the file.
        zeros: Share of the weights that are zero now.
    """

    name: str
    operator: str
    shape: tuple[int, ...]
    zeros: float


def measure(graph: onnx.GraphProto) -> Sparsity | None:
    """Count the zeros in the weights of a graph's layers; None if there are no layers with constant weights."""
    weights = [layer.weights for layer in _layers(graph)]
    total = sum(array.size for array in weights)
    if not total:
        return None
    zeros = sum(array.size - np.count_nonzero(array) for array in weights)
    blocks = {}
    for outputs, inputs in BLOCKS:
        norms = [_norms(array, Block(outputs, inputs)) for array in weights]
        count = sum(int(np.count_nonzero(norm == 0)) for norm in norms)
        blocks[str(Block(outputs, inputs))] = count / sum(norm.size for norm in norms)
    return Sparsity(float(zeros / total), blocks)


def prune(proto: onnx.ModelProto, share: float, block: Block, seed: int | None = None) -> list[PrunedLayer]:
    """Make blocks of a model's weights zero, in place: in each layer this share of its blocks.

    Those with the smallest sum of magnitudes become zero, or random ones. Layers stay as they are that have groups of
    channels, fewer outputs than a block, or few inputs.

    Args:
        proto: The model, whose weights are initializers.
        share: Share of the blocks of each layer, 0 to 1.
        block: Shape of the blocks.
        seed: For random blocks; None for those with the smallest sums.

    Raises:
        InputError: No layer can be pruned.
    """
    random = None if seed is None else np.random.default_rng(seed)
    pruned: dict[str, PrunedLayer] = {}
    for layer in _layers(proto.graph):
        outputs, inputs = layer.weights.shape[:2]
        # Weights that several layers share are pruned once.
        if outputs < block.outputs or inputs < max(_LEAST_INPUTS, block.inputs) or layer.tensor.name in pruned:
            continue
        norms = _norms(layer.weights, block)
        ranks = norms.ravel().argsort(kind="stable") if random is None else random.permutation(norms.size)
        keep = np.ones(norms.size, bool)
        keep[ranks[: round(share * norms.size)]] = False
        mask = keep.reshape(norms.shape).repeat(block.outputs, 0).repeat(block.inputs, 1)
        weights = layer.weights * mask[:outputs, :inputs].reshape(layer.weights.shape)
        stored = np.ascontiguousarray(weights.T if layer.is_transposed else weights)
        layer.tensor.CopyFrom(numpy_helper.from_array(stored, layer.tensor.name))
        zeros = float(1 - np.count_nonzero(weights) / weights.size)
        pruned[layer.tensor.name] = PrunedLayer(layer.name, layer.operator, stored.shape, zeros)
    if not pruned:
        raise InputError(
            f"no layer of the model has {block.outputs} outputs, {max(_LEAST_INPUTS, block.inputs)} inputs "
            "and constant weights",
            hint="use a smaller block",
        )
    return list(pruned.values())


@dataclass(frozen=True)
class _Layer:
    """A convolution or fully connected layer; its weights are [outputs, inputs, ...]."""

    name: str
    operator: str
    tensor: onnx.TensorProto
    weights: NDArray[np.float32]
    is_transposed: bool


def _layers(graph: onnx.GraphProto) -> Iterator[_Layer]:
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type not in {"Conv", "Gemm", "MatMul"} or node.domain not in protos.STANDARD:
            continue
        tensor = constants.get(node.input[1])
        if tensor is None or protos.get_attribute(node, "group", 1) != 1:
            continue
        weights = numpy_helper.to_array(tensor)
        is_transposed = node.op_type == "MatMul" or (
            node.op_type == "Gemm" and not protos.get_attribute(node, "transB", 0)
        )
        if weights.ndim < 2 or (node.op_type != "Conv" and weights.ndim > 2):  # noqa: PLR2004 - outputs and inputs
            continue
        name = node.name or node.output[0]
        yield _Layer(name, node.op_type, tensor, weights.T if is_transposed else weights, is_transposed)


def _norms(weights: NDArray[np.float32], block: Block) -> NDArray[np.float64]:
    """Return the sums of magnitudes of the blocks: [blocks of outputs, blocks of inputs, taps]."""
    outputs, inputs = weights.shape[:2]
    rows, columns = -(-outputs // block.outputs), -(-inputs // block.inputs)
    padded = np.zeros((rows * block.outputs, columns * block.inputs, int(np.prod(weights.shape[2:]))))
    padded[:outputs, :inputs] = np.abs(weights).reshape(outputs, inputs, -1)
    norms: NDArray[np.float64] = padded.reshape(rows, block.outputs, columns, block.inputs, -1).sum((1, 3))
    return norms
