"""Pooling on blocked activations: largest number or average of windows, or of whole images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit, window
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.kernels.window import Tap, Tile
from toolchain.backends.cpu.layers import BFLOAT16, FLOAT16, Layer, Pool
from toolchain.backends.cpu.machine import Machine

NAME = "pool"

Config = window.Config

_SUMS = 8  # of a whole image at a time: one alone would wait for itself at every pixel


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    return (
        isinstance(layer, Pool)
        and layer.data.lanes == layer.out.lanes > 1
        and (
            layer.data.dtype == layer.out.dtype == FLOAT16
            or {layer.data.dtype, layer.out.dtype} <= {"float32", BFLOAT16}
        )
    )


def configs(layer: Pool, machine: Machine) -> list[tuple[Config, float]]:
    """List the candidates with their estimated costs, the cheapest first. For whole images, columns are pixels."""
    if not _is_global(layer):
        return window.configs(layer, machine)
    pixels, images = layer.data.height * layer.data.width, layer.data.batch * layer.data.blocks
    busiest = -(-images // emit.worker_count(window.operations(layer), machine.cores))
    return [(Config(min(_SUMS, pixels), 1), busiest * (pixels + 3 * _SUMS))]


def kernel(layer: Pool, machine: Machine, config: Config) -> tirx.PrimFunc:
    out = layer.out
    arguments = [
        Argument("data", layer.data.shape, layer.data.stored_dtype),
        *emit.arguments_of(layer.epilogue, out),
        Argument("out", out.shape, out.stored_dtype),
    ]

    def body(data: Any, *rest: Any) -> None:
        *others, result = rest
        if _is_global(layer):
            _write_global(layer, config, data, others, result)
        else:
            _PoolWriter(layer, machine, config, _PoolReduction(layer)).write(data, others, result)

    return emit.kernel(arguments, body, {})


def _is_global(layer: Pool) -> bool:
    """Whether the only window is the whole image."""
    data, out = layer.data, layer.out
    is_single = out.height == out.width == layer.dilation[0] == layer.dilation[1] == 1
    down, across = window.sides(layer)
    # Padding behind the image may be part of an average.
    adds = layer.counts_padding and (down.padded(0), across.padded(0)) != (data.height, data.width)
    return is_single and layer.kernel == (data.height, data.width) and layer.padding[:2] == (0, 0) and not adds


def _write_global(layer: Pool, config: Config, data: Any, others: Sequence[Any], out: Any) -> None:
    activation, lanes, sums = layer.data, layer.out.lanes, config.columns
    pixels, reduced = activation.height * activation.width, _PoolReduction(layer)
    with emit.shared(activation.batch * activation.blocks, window.operations(layer)) as work:
        image, block = T.Bind(work // activation.blocks), T.Bind(work % activation.blocks)
        base = T.Bind(emit.offset(activation, image, block, 0, 0))
        partial = emit.Registers(sums, lanes, _type_of_sums(layer))

        def pixel(number: Any) -> Any:
            vector = emit.load(data, activation, base + number * activation.stored_lanes)
            return emit.in_type(vector, _type_of_sums(layer), lanes)

        for number in range(sums):
            partial[number] = pixel(number)

        def add(first: Any, count: int) -> None:
            for number in range(count):
                partial[number] = reduced.pair(partial[number], T.Bind(pixel(first + number)))

        with T.serial(1, pixels // sums) as step:
            add(step * sums, sums)
        add(pixels // sums * sums, pixels % sums)
        totals = [T.Bind(partial[number]) for number in range(sums)]
        # A tree of pairs: its depth is the logarithm of the sums.
        while len(totals) > 1:
            totals = [
                T.Bind(reduced.pair(*totals[index : index + 2])) if index + 1 < len(totals) else totals[index]
                for index in range(0, len(totals), 2)
            ]
        value = reduced.divide(totals[0], pixels)
        value = emit.apply_epilogue(value, layer.epilogue, others, (image, block, 0, 0), lanes)
        emit.store(value, out, layer.out, (image, block, 0, 0))


def _type_of_sums(layer: Pool) -> str:
    """Return the element type that windows are reduced in: sums of float16 are in float32."""
    return FLOAT16 if layer.reduce == "max" and layer.data.dtype == FLOAT16 else "float32"


class _PoolWriter(window.WindowWriter):
    def __init__(self, layer: Pool, machine: Machine, config: Config, reduction: _PoolReduction) -> None:
        super().__init__(layer, machine, config, reduction)
        self._type = self.sum_dtype = _type_of_sums(layer)

    def load(self, data: Any, base: Any, pixels: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for pixel, vector in super().load(data, base, pixels):
            yield pixel, T.Bind(emit.in_type(vector, self._type, self._layer.out.lanes))


class _PoolReduction:
    def __init__(self, layer: Pool) -> None:
        self._layer, self._lanes = layer, layer.out.lanes

    def initial(self, block: Any) -> Any:  # noqa: ARG002 - the same for all blocks
        start = 0.0 if self._layer.reduce == "mean" else float("-inf")
        return emit.splat(start, self._lanes, _type_of_sums(self._layer))

    @staticmethod
    def first(pixel: Any) -> Any:
        return pixel

    def pair(self, total: Any, pixel: Any) -> Any:
        return total + pixel if self._layer.reduce == "mean" else tirx.max(total, pixel)

    def add_pixel(self, total: Any, pixel: Any, block: Any, tap: Tap) -> Any:  # noqa: ARG002 - all taps count the same
        return self.pair(total, pixel)

    def finish(self, total: Any, tile: Tile, number: int) -> Any:
        across = tile.across
        if self._layer.counts_padding:
            return self.divide(total, tile.padded * across.padded[number])
        begin, end = tile.taps
        return self.divide(total, (end - begin) * sum(across.inside[number]))

    def divide(self, total: Any, count: Any) -> Any:
        """Return an average of a sum; a largest number as it is."""
        if self._layer.reduce == "max":
            return total
        # A count that is known here is a factor; otherwise the kernel divides.
        if isinstance(count, int):
            return total * emit.splat(1.0 / count if count else 0.0, self._lanes)
        return total * emit.splat(T.Bind(tirx.const(1.0, "float32") / tirx.Cast("float32", count)), self._lanes)
