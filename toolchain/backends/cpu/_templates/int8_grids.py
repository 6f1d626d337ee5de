"""How bytes stand for numbers, and what the kernels of layers on bytes are told of it.

A byte stands for a number as ONNX's QuantizeLinear has it: number = scale * (byte - zero), and
byte = clamp(round(number / scale) + zero), rounding half to even. A processor's products of bytes want one type of
byte for the data (`byte_of`), so what is uint8 in a model may be int8 here, with a zero that is 128 less.

No kernel knows a scale: it reads them from its arguments, so that layers of the same shape share one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu._layers import Activation, QuantizedConv, QuantizedLayer, QuantizedPool
from toolchain.backends.cpu._machine import Machine

LEAST = {"uint8": 0, "int8": -128}
"""Least value of a type of byte; the greatest is 255 more."""

_LINEAR = frozenset({"add", "relu", "leaky_relu"})  # f(k * x) = k * f(x): these can work in any unit


@dataclass(frozen=True)
class Grid:
    """The numbers that bytes can say: scale * (byte - zero)."""

    scale: float
    zero: int


def byte_of(machine: Machine) -> Literal["uint8", "int8"]:
    """Return the type of byte that a machine's products want for the data; the weights are int8 always."""
    return "int8" if machine.dot == "sdot" else "uint8"


def is_byte(place: Activation) -> bool:
    """Whether a tensor holds bytes."""
    return place.dtype in LEAST


def quantizer_units(layer: QuantizedLayer) -> list[bool]:
    """For each place where a layer rounds to bytes, in order: whether the value is in the unit of that grid already.

    Between roundings, values may have any unit if nothing but linear steps follow; then the unit of the next grid
    saves a product for each value.
    """
    found: list[bool] = []
    linear = True
    for step in layer.steps:
        if step.kind == "quantize":
            found.append(linear)
            linear = True
        else:
            linear = linear and step.kind in _LINEAR
    return [*found, linear] if is_byte(layer.out) else found


def sums(layer: QuantizedConv, data: Grid, weights: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
    """Return where the sums of products start: sum of (x - zero) * w + bias = sum of x * w + (bias - zero * sum of w).

    Args:
        layer: The layer.
        data: Grid of its input.
        weights: Its weights, int8 OIHW.
        bias: Its bias in the unit of a product (scale of the data times scale of the channel's weights), whole numbers.

    Returns:
        int32 [blocks, lanes], zeros behind the last channel.
    """
    start = np.rint(bias).astype(np.int64)
    if not layer.is_depthwise:  # its kernel takes the zero from each byte
        start -= data.zero * weights.astype(np.int64).sum(axis=(1, 2, 3))
    limits = np.iinfo(np.int32)
    return _blocked(layer, np.clip(start, limits.min, limits.max).astype(np.int32))


def scales(layer: QuantizedConv, data: Grid, weight_scales: NDArray[Any], grids: Sequence[Grid]) -> NDArray[Any]:
    """Return what the sums of products are multiplied with.

    Args:
        layer: The layer.
        data: Grid of its input.
        weight_scales: Scale of each output channel's weights.
        grids: As for `parameters`.

    Returns:
        float32 [blocks, lanes], zeros behind the last channel.
    """
    unit = _units(layer, grids)[0]
    return _blocked(layer, (weight_scales.astype(np.float64) * data.scale / unit).astype(np.float32))


def _blocked(layer: QuantizedConv, values: NDArray[Any]) -> NDArray[Any]:
    filled = np.zeros(layer.out.blocks * layer.out.lanes, values.dtype)
    filled[: len(values)] = values
    return filled.reshape(layer.out.blocks, layer.out.lanes)


def parameters(layer: QuantizedLayer, data: Grid, grids: Sequence[Grid]) -> NDArray[Any]:
    """Return the numbers of a layer that are the same for all channels.

    First two for the data: for a convolution its zero and nothing, for a mean the factor from byte to value and the
    zero, for a map the factor and what is added then.
    Then for a step `add` factor and offset of the other tensor; for a step `quantize` the factor into the grid's unit,
    the least and the greatest, and the factor out of it; and for a result in bytes the factor into its unit, the
    least, the greatest, and its zero.

    Args:
        layer: The layer.
        data: Grid of its input; scale 1 and zero 0 for numbers.
        grids: One for each step that is `add` (scale 1 and zero 0 for numbers) or `quantize`, and one for a result in
            bytes, in order.
    """
    units, given = iter(_units(layer, grids)), iter(grids)
    unit = next(units)
    if isinstance(layer, QuantizedConv):
        found = [float(data.zero), 0.0]
    else:
        offset = data.zero if isinstance(layer, QuantizedPool) else -data.zero * data.scale / unit
        found = [data.scale / unit, offset]
    byte = layer.data.dtype if is_byte(layer.data) else layer.out.dtype
    for step in layer.steps:
        if step.kind == "add":
            grid = next(given)
            found += [grid.scale / unit, -grid.zero * grid.scale / unit]
        elif step.kind == "quantize":
            grid, before, unit = next(given), unit, next(units)
            low = LEAST[byte] - grid.zero
            found += [before / grid.scale, low, low + 255, grid.scale / unit]
    if is_byte(layer.out):
        grid = next(given)
        low = LEAST[layer.out.dtype] - grid.zero
        found += [unit / grid.scale, low, low + 255, grid.zero]
    return np.array(found, np.float32)


def parameter_count(layer: QuantizedLayer) -> int:
    """Return how many numbers `parameters` returns; a kernel that needs none has no such argument."""
    if isinstance(layer, QuantizedPool) and layer.reduce == "max":
        return 0
    sizes = {"add": 2, "quantize": 4}
    return 2 + sum(sizes.get(step.kind, 0) for step in layer.steps) + (4 if is_byte(layer.out) else 0)


def _units(layer: QuantizedLayer, grids: Sequence[Grid]) -> list[float]:
    """Return the unit of the values at the start and after each step `quantize`."""
    kinds = [step.kind for step in layer.steps if step.kind in {"add", "quantize"}]
    rounding = [grid for kind, grid in zip([*kinds, "quantize"], grids, strict=False) if kind == "quantize"]
    fits = quantizer_units(layer)
    units = [grid.scale if fit else 1.0 for grid, fit in zip(rounding, fits, strict=True)]
    return units if is_byte(layer.out) else [*units, 1.0]
