"""Signals: Fourier transforms as products with a constant matrix, and their windows.

The matrix is exact for any length, and matrix products are what the backends do best.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper
from tvm import relax, te

from toolchain.models.converters import Node, converter

_AXIS_AS_INPUT = 20  # the opset since which DFT has its axis as an input
_PARTS = 2  # of a complex number
_HANN, _HAMMING, _BLACKMAN = (0.5, 0.5), (25 / 46, 21 / 46), (0.42, 0.5, 0.08)

Array = NDArray[Any]


@converter("DFT")
def dft(node: Node) -> Any:
    shape = node.shape(0)
    rank = len(shape)
    if node.opset < _AXIS_AS_INPUT:
        axis = int(node.attributes.get("axis", 1)) % rank
    else:
        axis_input = node.constant(2)
        axis = (-2 if axis_input is None else int(axis_input.reshape(()))) % rank
    length_input = node.constant(1)
    inverse, half = (bool(node.attributes.get(name, 0)) for name in ("inverse", "onesided"))
    full_length = 2 * (shape[axis] - 1) if inverse and half else shape[axis]  # the input is one half and its middle
    length = full_length if length_input is None else int(length_input.reshape(()))
    data = _move_axis(node, node.input(0), axis, rank - 2)
    sizes = node.shape_of(data)
    used = min(length, sizes[-2])
    if used < sizes[-2]:
        data = node.emit(relax.op.strided_slice(data, [rank - 2], [0], [used]))
    real = inverse and half  # the other half of the input is the conjugate of this one
    matrix = _half_inverse_matrix(length, used) if real else _fourier_matrix(length, used, inverse=inverse, half=half)
    matrix = matrix.reshape(used, _PARTS, -1)[:, : sizes[-1]].reshape(used * sizes[-1], -1)
    product = relax.op.matmul(
        node.emit(relax.op.reshape(data, (*sizes[:-2], used * sizes[-1]))), relax.const(matrix.astype(node.dtype(0)))
    )
    components = 1 if real else _PARTS
    spectrum = node.emit(relax.op.reshape(node.emit(product), (*sizes[:-2], -1, components)))
    return _move_axis(node, spectrum, rank - 2, axis)


def _move_axis(node: Node, value: Any, axis: int, to: int) -> Any:
    if axis == to:
        return value
    order = [other for other in range(len(node.shape_of(value))) if other != axis]
    order.insert(to, axis)
    return node.emit(relax.op.permute_dims(value, order))


def _fourier_matrix(length: int, used: int, *, inverse: bool, half: bool) -> Array:
    """Return the matrix from [used, (real, imaginary)] to [frequencies, (real, imaginary)]."""
    count = length // 2 + 1 if half else length
    # The remainder keeps angles small: cosines of large ones lose digits.
    turns = np.outer(np.arange(used), np.arange(count)) % length / length * 2 * np.pi
    real, imaginary = np.cos(turns), np.sin(turns) * (1 if inverse else -1)
    matrix = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], 1)
    flat: Array = matrix.reshape(used * _PARTS, count * _PARTS) / (length if inverse else 1)
    return flat


def _half_inverse_matrix(length: int, used: int) -> Array:
    """Return the matrix from one half of a spectrum, [used, (real, imaginary)], to the real signal."""
    turns = np.outer(np.arange(used), np.arange(length)) % length / length * 2 * np.pi
    twice = np.where((np.arange(used) == 0) | (2 * np.arange(used) == length), 1, 2)[:, None]
    matrix: Array = np.stack([np.cos(turns) * twice, -np.sin(turns) * twice], 1) / length
    return matrix.reshape(used * _PARTS, length)


@converter("STFT")
def stft(node: Node) -> Any:
    """Multiply frames of the signal with one matrix that includes the window."""
    batch, samples, *components = node.shape(0)
    components = components or [1]
    step, window, length = int(_scalar(node, 1)), node.input(2), node.constant(3)
    size = int(length.reshape(())) if length is not None else node.shape(2)[0]
    frames = (samples - size) // step + 1
    half = bool(node.attributes.get("onesided", 1))

    def framed(signal: Any) -> Any:
        shape = (batch, frames, size, components[0])
        return te.compute(shape, lambda b, f, i, p: signal(b, f * step + i, p), name="frames")

    signal = node.emit(relax.op.reshape(node.input(0), (batch, samples, components[0])))
    values = node.compute(framed, signal, name="frames")
    matrix = _fourier_matrix(size, size, inverse=False, half=half).reshape(size, _PARTS, -1)[:, : components[0]]
    if window is not None and node.is_constant(2):
        matrix = matrix * np.asarray(node.constant(2)).reshape(size, 1, 1)
    elif window is not None:
        values = node.emit(relax.op.multiply(values, relax.op.reshape(window, (size, 1))))
    rows = node.emit(relax.op.reshape(values, (batch, frames, size * components[0])))
    weights = matrix.reshape(size * components[0], -1).astype(node.dtype(0))
    spectrum = node.emit(relax.op.matmul(rows, relax.const(weights)))
    return relax.op.reshape(spectrum, (batch, frames, -1, _PARTS))


def _scalar(node: Node, index: int) -> Any:
    value = node.constant(index)
    if value is None:
        raise node.refusal(f"input {index} is left out")
    return value.reshape(())


def _window_converter(coefficients: tuple[float, ...]) -> Callable[[Node], Any]:
    """Return the converter of a window that is a sum of cosines with alternating signs."""

    def convert(node: Node) -> Any:
        size, periodic = int(_scalar(node, 0)), bool(node.attributes.get("periodic", 1))
        turns = 2 * np.pi * np.arange(size) / max(size if periodic else size - 1, 1)
        terms = [(-1) ** order * share * np.cos(order * turns) for order, share in enumerate(coefficients)]
        return relax.const(np.sum(terms, axis=0).astype(_dtype(node)))

    return convert


def _dtype(node: Node) -> Any:
    return helper.tensor_dtype_to_np_dtype(int(node.attributes.get("output_datatype", 1)))


converter("HannWindow")(_window_converter(_HANN))
converter("HammingWindow")(_window_converter(_HAMMING))
converter("BlackmanWindow")(_window_converter(_BLACKMAN))


@converter("MelWeightMatrix")
def mel_weight_matrix(node: Node) -> Any:
    """Return triangles between edges that are equally spaced in mel."""
    bands, length, rate, lowest, highest = (_scalar(node, index).item() for index in range(5))
    bins = length // 2 + 1
    # The mel scale of HTK, which the standard uses.
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (lowest, highest))
    mels = np.arange(bands + 2) * ((high - low) / (bands + 2)) + low
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    matrix: Array = np.zeros((bins, bands))
    for band, (left, middle, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        if middle > left:
            matrix[left : middle + 1, band] = (np.arange(left, middle + 1) - left)[: bins - left] / (middle - left)
        else:
            matrix[middle, band] = 1
        if right > middle:
            matrix[middle:right, band] = (right - np.arange(middle, right))[: bins - middle] / (right - middle)
    return relax.const(matrix.astype(_dtype(node)))
