"""Weights of which zero blocks are left out, as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.layers import Conv, Dense
from toolchain.backends.cpu.machine import Machine
from toolchain.errors import BuildError

MOST_VECTORS = 0.7
"""Share of the vectors that are not zero, above which no layer is faster without the others."""

_SMALLEST = np.finfo(np.float32).tiny  # of the numbers with full precision
_OF_LINE = emit.LINE // 4

Used = NDArray[np.bool_]


@dataclass(frozen=True)
class Packing:
    """Where the parts of packed weights lie, counted in elements of 32 bits.

    The array begins with where each list of vectors begins, one list for each block of outputs, and the end of the
    last list. Behind them is, for each vector, where its input lies in the gathered data. The vectors begin on a line
    of the cache.

    Attributes:
        blocks: Blocks of outputs.
        vectors: Vectors that are not zero.
        lanes: Weights of a vector.
    """

    blocks: int
    vectors: int
    lanes: int

    @property
    def positions(self) -> int:
        """Where the positions of the inputs begin."""
        return self.blocks + 1

    @property
    def numbers(self) -> int:
        """Where the vectors begin."""
        return -(-(self.positions + self.vectors) // _OF_LINE) * _OF_LINE

    @property
    def size(self) -> int:
        """Elements in all."""
        return self.numbers + self.vectors * self.lanes


def packing(layer: Conv | Dense, machine: Machine) -> Packing:
    """Return where the parts of a layer's packed weights lie."""
    return Packing(-(-layer.weights_shape[0] // machine.lanes), layer.vectors, machine.lanes)


def count_vectors(weights: NDArray[np.float32], lanes: int) -> int:
    """Count the vectors of weights [outputs, inputs, ...] that are not all zero; 0 if leaving out the others is no use.

    Args:
        weights: The weights before they are packed.
        lanes: Weights of a vector.
    """
    # The share of the vectors that are not zero is at least that of the weights, which is counted faster.
    if np.count_nonzero(np.abs(weights) >= _SMALLEST) > MOST_VECTORS * weights.size:
        return 0
    used = _used(_in_vectors(weights, lanes))
    count = int(np.count_nonzero(used))
    return count if count <= MOST_VECTORS * used.size else 0


def pack(weights: NDArray[np.float32], positions: NDArray[np.int64], packing: Packing) -> NDArray[np.int32]:
    """Return weights [outputs, inputs, ...] as the kernels read them, the bits of floats among integers.

    Args:
        weights: The weights.
        positions: Where each tap's inputs lie in the gathered data: those of the first tap first.
        packing: Where the parts go.

    Raises:
        BuildError: The weights have not as many vectors as `packing`.
    """
    vectors = _in_vectors(weights, packing.lanes)
    used = _used(vectors)
    if np.count_nonzero(used) != packing.vectors:
        raise BuildError(
            "the weights of a layer changed after its zero blocks were counted",
            details=f"{np.count_nonzero(used)} vectors are not zero; {packing.vectors} were counted",
        )
    packed = np.zeros(packing.size, np.int32)
    packed[1 : packing.positions] = np.cumsum(np.count_nonzero(used, axis=1))
    packed[packing.positions : packing.positions + packing.vectors] = positions[np.nonzero(used)[1]]
    packed[packing.numbers :] = np.ascontiguousarray(vectors[used], np.float32).view(np.int32).ravel()
    return packed


def example(layer: Conv | Dense, lanes: int) -> NDArray[np.float32]:
    """Return weights with as many vectors that are not zero as a layer has, spread evenly at random, to measure it."""
    blocks, inputs = -(-layer.weights_shape[0] // lanes), int(np.prod(layer.weights_shape[1:]))
    used = np.zeros(blocks * inputs, bool)
    used[np.random.default_rng(0).permutation(used.size)[: layer.vectors]] = True
    vectors = np.where(used.reshape(blocks, 1, inputs), np.float32(0.5), np.float32(0))
    weights = np.broadcast_to(vectors, (blocks, lanes, inputs)).reshape(blocks * lanes, inputs)
    return np.ascontiguousarray(weights[: layer.weights_shape[0]].reshape(layer.weights_shape))


def _in_vectors(weights: NDArray[np.float32], lanes: int) -> NDArray[np.float32]:
    """Return weights [outputs, inputs, ...] as [blocks of outputs, taps and inputs, lanes]."""
    outputs, inputs = weights.shape[:2]
    blocks = -(-outputs // lanes)
    padded = np.zeros((blocks * lanes, inputs, int(np.prod(weights.shape[2:]))), np.float32)
    padded[:outputs] = weights.reshape(outputs, inputs, -1)
    return padded.reshape(blocks, lanes, inputs, -1).transpose(0, 3, 2, 1).reshape(blocks, -1, lanes)


def _used(vectors: NDArray[np.float32]) -> Used:
    """Say of each vector whether it has a weight that a product needs; see `kernels.without_subnormals`."""
    return np.asarray((np.abs(vectors) >= _SMALLEST).any(axis=-1))
