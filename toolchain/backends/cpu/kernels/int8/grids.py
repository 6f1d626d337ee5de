"""How bytes represent numbers, and the arguments that pass it to the kernels of layers on bytes.

A byte stands for a number as ONNX's QuantizeLinear has it: number = scale * (byte - zero), and
byte = clamp(round(number / scale) + zero), rounding half to even. A processor's products of bytes want one type of
byte for the data (`byte_of`), so what is uint8 in a model may be int8 here, with a zero that is 128 less.

No kernel knows a scale: it reads them from its arguments, so that layers of the same shape share one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.layers import Conv, ImageLayer, Pool
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.quantization import LEAST, Grid

_LINEAR = frozenset(
    {"add", "mul", "scale", "shift", "relu", "leaky_relu"}
)  # f(k * x) = k * f(x): they work in any unit


def byte_of(machine: Machine) -> Literal["uint8", "int8"]:
    """Return the type of byte that a machine's products want for the data; the weights are int8 always."""
    match machine.dot:
        case "vpdpbusd" | "":  # ONNX's usual type, for a processor without such products
            return "uint8"
        case "sdot" | "smull" | "vmull":
            return "int8"
        case _:
            assert_never(machine.dot)


def quantizer_units(layer: ImageLayer) -> list[bool]:
    """For each place where a layer rounds to bytes, in order: whether the value is in the unit of that grid already.

    Between roundings, values may have any unit if nothing but linear post-ops follow; then the unit of the next grid
    saves a product for each value.
    """
    in_unit: list[bool] = []
    linear = True
    for op in layer.epilogue:
        if op.kind == "quantize":
            in_unit.append(linear)
            linear = True
        else:
            linear = linear and op.kind in _LINEAR
    return [*in_unit, linear] if layer.out.is_bytes else in_unit


def sums(layer: Conv, data: Grid, weights: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
    """Return where the sums of products start: sum of (x - zero) * w + bias = sum of x * w + (bias - zero * sum of w).

    Args:
        data: Grid of its input.
        weights: Its weights above their zeros, OIHW.
        bias: Its bias in the unit of a product (scale of the data times scale of the channel's weights); `fraction`
            returns what is left of it.

    Returns:
        int32 [blocks, lanes], zeros behind the last channel.
    """
    start = np.rint(bias).astype(np.int64)
    if not layer.is_depthwise:  # its kernel takes the zero from each byte
        start -= data.zero * weights.astype(np.int64).sum(axis=(1, 2, 3))
    limits = np.iinfo(np.int32)
    return pad_channels(layer, np.clip(start, limits.min, limits.max).astype(np.int32))


def to_int8(weights: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return weights above their zeros, OIHW, as int8 and by how much each output channel's lie higher than those."""
    rows, limits = weights.reshape(len(weights), -1), np.iinfo(np.int8)
    fits = (rows.min(axis=1) >= limits.min) & (rows.max(axis=1) <= limits.max)
    offsets = np.where(fits, 0, rows.min(axis=1).astype(np.int32) - limits.min)
    # Channels that do not fit are moved down so far that their least weight is the least int8.
    low = weights - offsets.reshape(-1, *[1] * (weights.ndim - 1))
    return np.ascontiguousarray(low, np.int8), offsets.astype(np.int32)


def pairs_overflow(weights: NDArray[np.int8]) -> bool:
    """Whether two products that `int8.pairs` adds may exceed int16: -128 times -128, twice.

    Args:
        weights: OIHW, as `to_int8` returns them.
    """
    outputs, inputs, *kernel = weights.shape
    padded = np.zeros((outputs, -(-inputs // 4) * 4, *kernel), np.int8)
    padded[:, :inputs] = weights
    halves = padded.reshape(outputs, -1, 2, 2, *kernel)
    return bool((halves == np.iinfo(np.int8).min).all(axis=2).any())


def offsets(layer: Conv, raised: NDArray[np.int32]) -> NDArray[Any]:
    """Return the offsets of `to_int8`, int32 [blocks, lanes], zeros behind the last channel."""
    return pad_channels(layer, raised)


def fraction(bias: NDArray[Any]) -> float:
    """Return by how much the biases of all channels lie above whole numbers, in the unit of a product.

    Where they differ, they are rounded and it is 0. `toolchain quantize` makes it a quarter, so that no sum is half-way
    between two bytes: to leave it out would round halves the other way.
    """
    above = bias - np.rint(bias)
    return float(above[0]) if len(above) and (above == above[0]).all() else 0.0


def scales(layer: Conv, data: Grid, weight_scales: NDArray[Any], grids: Sequence[Grid]) -> NDArray[Any]:
    """Return what the sums of products are multiplied with.

    Args:
        data: Grid of its input.
        weight_scales: Scale of each output channel's weights.
        grids: As for `parameters`.

    Returns:
        float32 [blocks, lanes], zeros behind the last channel.
    """
    unit = _units(layer, grids)[0]
    return pad_channels(layer, (weight_scales.astype(np.float64) * data.scale / unit).astype(np.float32))


def pad_channels(layer: ImageLayer, values: NDArray[Any]) -> NDArray[Any]:
    """Return one number for each channel as [blocks, lanes], zeros behind the last channel."""
    filled = np.zeros(layer.out.blocks * layer.out.lanes, values.dtype)
    filled[: len(values)] = values
    return filled.reshape(layer.out.blocks, layer.out.lanes)


def parameters(layer: ImageLayer, data: Grid, grids: Sequence[Grid], above: float = 0.0) -> NDArray[Any]:
    """Return the numbers of a layer that are the same for all channels.

    First two for the data: for a convolution its zero and what is added to each sum, for a mean the factor from byte
    to value and the zero, for a map the factor and what is added then.
    Then for a post-op `add` or `mul` factor and offset of the other tensor; for a post-op `quantize` the factor into
    the grid's unit, the least and the greatest, and the factor out of it; and for a result in bytes the factor into its
    unit, the least, the greatest, and its zero.

    Args:
        data: Grid of its input; scale 1 and zero 0 for numbers.
        grids: One for each post-op that is `add`, `mul` (scale 1 and zero 0 for numbers) or `quantize`, and one for a
            result in bytes, in order.
        above: For a convolution, the fraction of its biases.
    """
    units, rest = iter(_units(layer, grids)), iter(grids)
    unit = next(units)
    if isinstance(layer, Conv):
        numbers = [float(data.zero), above]
    else:
        offset = data.zero if isinstance(layer, Pool) else -data.zero * data.scale / unit
        numbers = [data.scale / unit, offset]
    byte = layer.data.dtype if layer.data.is_bytes else layer.out.dtype
    for op in layer.epilogue:
        if op.kind in {"add", "mul"}:
            grid, operand_unit = next(rest), unit if op.kind == "add" else 1.0
            numbers += [grid.scale / operand_unit, -grid.zero * grid.scale / operand_unit]
        elif op.kind == "quantize":
            grid, before, unit = next(rest), unit, next(units)
            low = LEAST[byte] - grid.zero
            numbers += [before / grid.scale, low, low + 255, grid.scale / unit]
    if layer.out.is_bytes:
        grid = next(rest)
        low = LEAST[layer.out.dtype] - grid.zero
        numbers += [unit / grid.scale, low, low + 255, grid.zero]
    return np.array(numbers, np.float32)


def per_channel(layer: ImageLayer, grids: Sequence[Grid], numbers: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return what post-ops `scale` and `shift` take: float32 [blocks, lanes] each, zeros behind the last channel.

    Args:
        grids: As for `parameters`.
        numbers: One number for each channel, for each such post-op in order.
    """
    units, values = iter(_units(layer, grids)), iter(numbers)
    unit, vectors = next(units), []
    for op in layer.epilogue:
        if op.kind == "quantize":
            unit = next(units)
        elif op.kind in {"scale", "shift"}:
            vectors.append(
                pad_channels(layer, (next(values) / (unit if op.kind == "shift" else 1.0)).astype(np.float32))
            )
    return vectors


def parameter_count(layer: ImageLayer) -> int:
    """Return how many numbers `parameters` returns; a kernel that needs none has no such argument."""
    if isinstance(layer, Pool) and layer.reduce == "max":
        return 0
    sizes = {"add": 2, "mul": 2, "quantize": 4}
    return 2 + sum(sizes.get(op.kind, 0) for op in layer.epilogue) + (4 if layer.out.is_bytes else 0)


def _units(layer: ImageLayer, grids: Sequence[Grid]) -> list[float]:
    """Return the unit of the values at the start and after each post-op `quantize`."""
    kinds = [op.kind for op in layer.epilogue if op.kind in {"add", "mul", "quantize"}]
    rounding = [grid for kind, grid in zip([*kinds, "quantize"], grids, strict=False) if kind == "quantize"]
    fits = quantizer_units(layer)
    units = [grid.scale if fit else 1.0 for grid, fit in zip(rounding, fits, strict=True)]
    return units if layer.out.is_bytes else [*units, 1.0]
