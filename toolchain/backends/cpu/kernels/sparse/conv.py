"""Convolutions with mostly zero weights; see the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import direct, emit
from toolchain.backends.cpu.kernels.direct.plan import flatten, on_row
from toolchain.backends.cpu.kernels.emit import Argument, with_definitions
from toolchain.backends.cpu.kernels.sparse import weights as sparse
from toolchain.backends.cpu.kernels.sparse.tiles import Config, TileWriter, Work
from toolchain.backends.cpu.layers import Conv, Layer
from toolchain.backends.cpu.machine import Machine

__all__ = ["NAME", "Config", "configs", "covers", "kernel", "pack"]

NAME = "sparse"

Expr = Any


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return (
        direct.covers(layer)
        and isinstance(layer, Conv)
        and layer.vectors > 0
        and layer.groups == 1
        and layer.data.lanes == layer.out.lanes
        and layer.out.dtype == "float32"
    )


def configs(layer: Conv, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first."""
    return _work(layer, machine).configs(machine)


def pack(layer: Conv, machine: Machine, config: Config, weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights [out, in, height, width] as `sparse.Packing` describes them."""
    work, data = _work(layer, machine), layer.data
    taps = np.arange(layer.kernel[0] * layer.kernel[1])[:, None] * (data.blocks * data.lanes)
    inputs = (taps + np.arange(data.channels)).ravel()
    return sparse.pack(weights, inputs * work.stride(config), work.packing)


def kernel(layer: Conv, machine: Machine, config: Config) -> tirx.PrimFunc:
    """Write the kernel of a layer."""
    work = _work(layer, machine)
    arguments = [Argument("data", layer.data.shape), Argument("weights", (work.packing.size,), "int32")]
    if layer.bias:
        arguments.append(Argument("bias", (layer.out.blocks, layer.out.lanes)))
    arguments += [*emit.arguments_of(layer.epilogue, layer.out), Argument("out", layer.out.shape)]

    def body(*buffers: Any) -> None:
        _Writer(flatten(layer), machine, work, config, buffers).write()

    return with_definitions(emit.kernel(arguments, body, {}), machine)


def _work(layer: Conv, machine: Machine) -> Work:
    data, out = layer.data, layer.out
    inputs = layer.kernel[0] * layer.kernel[1] * data.blocks * data.lanes
    is_vector = layer.kernel == (1, 1) and data.height == data.width == 1 and not data.is_slice
    return Work(out.batch, out.height * out.width, inputs, sparse.packing(layer, machine), gathers=not is_vector)


class _Writer(TileWriter):
    def __init__(self, layer: Conv, machine: Machine, work: Work, config: Config, buffers: Sequence[Any]) -> None:
        super().__init__(machine, work, config, buffers[0], buffers[1])
        self._layer = layer
        _, _, *rest, self._out = buffers
        self._bias = rest.pop(0) if layer.bias else None
        self._others = rest

    def gather(self, gathered: Any, image: Expr, first: Expr, pixels: int) -> None:
        layer, data, lanes = self._layer, self._layer.data, self._lanes
        (height, width), (down, across) = layer.kernel, layer.dilation
        corners = [self._corner(first + pixel) for pixel in range(pixels)]
        with T.serial(0, height * width) as tap:
            sources = []
            for row, column in corners:
                row, column = T.Bind(row + tap // width * down), T.Bind(column + tap % width * across)  # noqa: PLW2901
                inside = tirx.all(row >= 0, row < data.height, column >= 0, column < data.width)
                sources.append((T.Bind(emit.offset(data, image, 0, row, column)), T.Bind(inside)))
            with T.serial(0, data.blocks) as block:
                skipped = T.Bind(block * (data.height * data.width * lanes))
                for start in range(0, pixels, lanes):
                    vectors = [
                        self._pixel(source + skipped, inside) for source, inside in sources[start : start + lanes]
                    ]
                    self.store_transposed(gathered, (tap * data.blocks + block) * lanes, start, vectors)

    def _corner(self, pixel: Expr) -> tuple[Expr, Expr]:
        """Return row and column of the data where the window of a pixel begins; both may lie in the padding."""
        layer, width = self._layer, self._layer.out.width
        row = T.Bind(pixel // width * layer.strides[0] - layer.padding[0])
        return row, T.Bind(pixel % width * layer.strides[1] - layer.padding[1])

    def _pixel(self, source: Expr, inside: Expr) -> Expr:
        """Return the vector of a pixel, or zeros outside of the image."""
        vector = self._data[emit.ramp(source, self._lanes)]
        if not any(self._layer.padding):
            return T.Bind(vector)
        return T.Bind(tirx.if_then_else(inside, vector, emit.splat(0.0, self._lanes)))

    def finish(self, totals: Sequence[Expr], image: Expr, block: Expr, first: Expr) -> None:
        layer, lanes = self._layer, self._lanes
        if self._bias is not None:
            bias = T.Bind(self._bias[emit.ramp(block * lanes, lanes)])
            totals = [T.Bind(total + bias) for total in totals]
        row = on_row(layer)
        emit.store_pixels(totals, row.epilogue, self._others, self._out, row.out, (image, block, 0, first))
