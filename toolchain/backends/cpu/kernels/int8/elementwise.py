"""Bytes from numbers and numbers from bytes, element by element, with the change of layout at the edges of a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.int8 import emit as int8
from toolchain.backends.cpu.kernels.int8.emit import GROUP
from toolchain.backends.cpu.layers import Activation, Layer, Map
from toolchain.backends.cpu.machine import Machine

NAME = "int8_map"

_PER_VECTOR = 8.0  # cost of one vector: conversions, limits, a load and a store


@dataclass(frozen=True)
class Config:
    """There is one way to do it."""


def covers(layer: Layer) -> bool:
    """Whether this template can compute a layer."""
    if not isinstance(layer, Map) or not (layer.data.is_bytes or layer.out.is_bytes):
        return False
    blocked = {activation.lanes for activation in _places(layer)} - {1}
    if len(blocked) != 1:
        return False
    return not any(op.takes_argument for op in layer.epilogue) or 1 not in {layer.data.lanes, layer.out.lanes}


def _places(layer: Map) -> list[Activation]:
    return [layer.data, layer.out, *(op.other for op in layer.epilogue if op.other)]


def configs(layer: Map, machine: Machine) -> list[tuple[Config, float]]:
    """Return the only candidate with its cost as `kernels.Candidate` defines it."""
    return [(Config(), _vectors(layer) * (_PER_VECTOR + 2 * len(layer.epilogue)) / machine.cores)]


def _vectors(layer: Map) -> float:
    out = layer.out
    return out.batch * out.height * out.width * out.channels / max(activation.lanes for activation in _places(layer))


def kernel(layer: Map, machine: Machine, config: Config) -> tirx.PrimFunc:  # noqa: ARG001 - as all templates

    def body(*buffers: Any) -> None:
        _ByteMapWriter(layer, machine, buffers).write()

    return emit.kernel(int8.arguments(layer), body, {})


class _ByteMapWriter:
    def __init__(self, layer: Map, machine: Machine, buffers: Sequence[Any]) -> None:
        self._layer, self._machine = layer, machine
        self._lanes = max(activation.lanes for activation in _places(layer))
        self._data, self._parameters, *others, self._out = buffers
        self._finish = int8.ByteEpilogue(layer, machine, self._parameters, others, self._out)

    def write(self) -> None:
        out = self._layer.out
        blocks = -(-out.channels // self._lanes)
        extent = out.batch * blocks * out.height
        with emit.shared(extent, _vectors(self._layer) * _PER_VECTOR) as work:
            row = T.Bind(work % out.height)
            block, image = T.Bind(work // out.height % blocks), T.Bind(work // (out.height * blocks))
            if self._layer.data.lanes == 1 and self._lanes == GROUP and out.is_bytes:
                self._fours(image, block, row)
            else:
                self._channels(image, block, row, blocks)

    def _channels(self, image: Any, block: Any, row: Any, blocks: int) -> None:
        """Write a row with vectors of channels; of the last block of a plain tensor only what there is."""
        layer = self._layer
        rest = layer.out.channels % self._lanes
        if not rest or 1 not in {layer.data.lanes, layer.out.lanes}:
            self._row(image, block, row, self._lanes)
        elif blocks == 1:
            self._row(image, block, row, rest)
        else:
            with T.If(block < blocks - 1):
                with T.Then():
                    self._row(image, block, row, self._lanes)
                with T.Else():
                    self._row(image, block, row, rest)

    def _row(self, image: Any, block: Any, row: Any, lanes: int) -> None:
        layer = self._layer
        with T.serial(0, layer.out.width) as column:
            coordinates = (image, block, row, column)
            value = self._finish.scaled(self._data[self._vector(layer.data, coordinates, lanes)], lanes)
            result = self._finish.element(value, coordinates, lanes)
            T.buffer_store(self._out, result, [self._vector(layer.out, coordinates, lanes)])

    def _vector(self, tensor: Activation, coordinates: emit.Coordinates, lanes: int) -> Any:
        """Return where a pixel's channels of one block lie: in a plain tensor far from each other."""
        image, block, row, column = coordinates
        if tensor.lanes > 1:
            return emit.ramp(emit.offset(tensor, *coordinates), lanes)
        offset = emit.offset(tensor, image, block * self._lanes, row, column)
        return tirx.Ramp(offset, tensor.height * tensor.width, lanes) if lanes > 1 else offset

    def _fours(self, image: Any, block: Any, row: Any) -> None:
        """Write a row of a plain tensor's four channels as bytes, with vectors of columns.

        A pixel's four bytes are one 32-bit number, so the bytes of different channels meet without a shuffle.
        """
        layer, lanes, width = self._layer, self._machine.lanes, self._layer.out.width
        for start, count, columns in ((0, width // lanes, lanes), (width - width % lanes, width % lanes, 1)):
            with T.serial(0, count) as number:
                column = T.Bind(start + number * columns)
                together, low_byte = emit.splat(0, columns, "int32"), emit.splat(255, columns, "int32")
                for channel in range(min(GROUP, layer.out.channels)):
                    source = tirx.min(block * GROUP + channel, layer.data.channels - 1)
                    pixels = self._data[emit.ramp(emit.offset(layer.data, image, source, row, column), columns)]
                    value = self._finish.scaled(pixels, columns)
                    byte = self._finish.value(value, (image, block, row, column), columns) & low_byte
                    together = T.Bind(together | (byte << emit.splat(8 * channel, columns, "int32")))
                integers = tirx.Cast(emit.wide("int32", columns), together)
                result = tirx.reinterpret(f"{layer.out.dtype}x{GROUP * columns}", integers)
                offset = emit.offset(layer.out, image, block, row, column)
                T.buffer_store(self._out, result, [emit.ramp(offset, GROUP * columns)])
