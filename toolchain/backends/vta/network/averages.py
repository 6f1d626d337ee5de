"""Averages of windows of bytes in blocks, by the CPU: bytes come out, in blocks as well.

The array could add them up, too, but divides by powers of two alone, and rounds halves up, where ONNX rounds to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.math import round_to_int
from toolchain.backends.graph.kernels import as_opaque, in_root_block
from toolchain.backends.graph.values import Operation, Value, four, pair
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.network.chains import Grid, UnfitError, grid, is_dequantize, is_quantize
from toolchain.backends.vta.network.packing import packed_shape

_POOL = "nn.avg_pool2d"
_LEAST, _GREATEST = -128, 127


@dataclass(frozen=True, eq=False)
class Average:
    """Averages of windows.

    Attributes:
        source: The bytes that are read.
        out: The bytes that are made.
        grids: What the bytes that are read, and those that are made, stand for.
        shape: Shape in blocks of the bytes that are read.
        made: Shape in blocks of those that are made.
        window: Rows and columns of a window.
        stride: Rows and columns between two windows.
        before: Rows and columns of padding above and left.
        counts_padding: Whether padding is counted, as zeros.
    """

    source: Value
    out: Value
    grids: tuple[Grid, Grid]
    shape: tuple[int, ...]
    made: tuple[int, ...]
    window: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    counts_padding: bool

    def kernel(self) -> tirx.PrimFunc:
        """Return the kernel: of the bytes that are read, and those that are made."""
        arguments = [Argument("data", self.shape, "int8"), Argument("out", self.made, "int8")]
        written = emit.kernel(arguments, self._write, {"tirx.is_scheduled": True})
        return as_opaque(written.with_body(in_root_block(written.body)), {})

    def _write(self, data: Any, out: Any) -> None:
        images, blocks, height, width, rows, lanes = self.made
        window = self.window[0] * self.window[1]
        operations = images * blocks * height * width * rows * window
        with (
            emit.shared(images * blocks, operations) as plane,
            T.serial(0, height) as row,
            T.serial(0, width) as column,
        ):
            tops, lefts = (self._inside(axis, place) for axis, place in enumerate((row, column)))
            with T.serial(0, rows) as image:
                found = self._average(data, plane, tops, lefts, image)
                place = (((plane * height + row) * width + column) * rows + image) * lanes
                T.buffer_store(out, found, [emit.ramp(place, lanes)])

    def _inside(self, axis: int, place: Any) -> tuple[Any, Any]:
        """Return the first row or column of a window that is no padding, and how many there are."""
        start = place * self.stride[axis] - self.before[axis]
        first = T.Bind(tirx.max(start, 0))
        return first, T.Bind(tirx.min(start + self.window[axis], self.shape[2 + axis]) - first)

    def _average(self, data: Any, plane: Any, tops: tuple[Any, Any], lefts: tuple[Any, Any], image: Any) -> Any:
        """Return the average of one window, of all channels of a block."""
        _, _, height, width, rows, lanes = self.shape
        sums, kind = emit.Registers(1, lanes, "int32"), emit.wide("int32", lanes)
        sums[0] = emit.splat(0, lanes, "int32")
        with T.serial(0, tops[1]) as row, T.serial(0, lefts[1]) as column:
            pixel = (plane * height + tops[0] + row) * width + lefts[0] + column
            sums[0] += data[emit.ramp((pixel * rows + image) * lanes, lanes)].astype(kind)
        inside = T.Bind(tops[1] * lefts[1])
        count = tirx.const(self.window[0] * self.window[1], "int32") if self.counts_padding else inside
        units = sums[0] - emit.splat(inside * self.grids[0].zero, lanes)
        return self._rounded(
            units.astype(emit.wide("float32", lanes)) / emit.splat(count.astype("float32"), lanes), lanes
        )

    def _rounded(self, numbers: Any, lanes: int) -> Any:
        """Return numbers in units of what is read as bytes of what is made."""
        source, made = self.grids
        scaled = numbers * emit.splat(2.0 ** (made.exponent - source.exponent), lanes)
        least, most = (emit.splat(float(end - made.zero), lanes) for end in (_LEAST, _GREATEST))
        bytes_ = round_to_int(tirx.max(tirx.min(scaled, most), least), lanes) + emit.splat(made.zero, lanes, "int32")
        return bytes_.astype(emit.wide("int8", lanes))


def average(operation: Operation, config: VtaConfig) -> Average | None:
    """Return the averages of bytes that an operation makes bytes of; None if it makes something else.

    Args:
        operation: Any.
        config: The machine.
    """
    pool = operation.inputs[0].maker if is_quantize(operation) else None
    numbers = pool.inputs[0].maker if pool is not None and pool.name == _POOL else None
    if pool is None or numbers is None or not is_dequantize(numbers):
        return None
    how = pool.attributes
    plain = (str(how.layout), str(how.out_layout)) == ("NCHW", "NCHW") and not bool(how.ceil_mode)
    if not plain or pair(how.dilation) != (1, 1):
        return None
    try:
        grids = grid(numbers, "it"), grid(operation, "it")
    except UnfitError:
        return None
    return Average(
        source=numbers.inputs[0],
        out=operation.out,
        grids=grids,
        shape=packed_shape(numbers.out.shape or (), config),
        made=packed_shape(operation.out.shape or (), config),
        window=pair(how.pool_size),
        stride=pair(how.strides),
        before=four(how.padding)[:2],
        counts_padding=bool(how.count_include_pad),
    )
