"""Let a quantised network compute on bytes: the first of the passes over a network, before constants are folded.

Each region that `int8_match` finds becomes one call of a kernel without code, as `_graph.blocked` makes them for the
rest of the network; `_graph.realized` puts in the real ones. Where a region ends, its bytes become numbers on plain
layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.cpu.graph.int8_match import Matcher, Region
from toolchain.backends.cpu.graph.rewriting import ENTRY, with_blocks, with_main
from toolchain.backends.cpu.graph.stand_ins import StandIns
from toolchain.backends.cpu.kernels.int8 import grids
from toolchain.backends.cpu.layers import Activation, Conv, ImageLayer, Map
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph import patterns
from toolchain.backends.graph.values import Block, Value, read

_ROUNDING = {tvm.ir.Op.get(f"relax.{name}") for name in ("quantize", "dequantize")}


def quantized(module: tvm.IRModule, machine: Machine, without: frozenset[str] = frozenset()) -> tvm.IRModule:
    """Rewrite regions on bytes into calls of kernels without code.

    On a processor without dot products of bytes nothing changes: the network computes on rounded numbers.

    Args:
        module: A Relax module whose weights are constants, bytes still as bytes; only its function `main` is rewritten.
        machine: The processor.
        without: Names of templates that must not be used.
    """
    if not machine.dot:
        return module
    module = _folded(module)
    builder = relax.BlockBuilder(module)
    stand_ins = StandIns(builder)

    def rewritten(block: Any) -> Any:
        if not isinstance(block, relax.DataflowBlock):
            return block
        values = read(block, module)
        patterns.found(values)
        return _Writer(values, Matcher(values, machine, without), stand_ins).run()

    main = with_blocks(module[ENTRY], rewritten)
    return with_main(builder.get(), main)


def _folded(module: tvm.IRModule) -> tvm.IRModule:
    """Compute ahead of time what depends on constants, but keep weights in bytes: they are parameters meanwhile."""
    hidden: dict[Any, Any] = {}

    def shown(binding: Any) -> Any:
        call = binding.value
        if (
            not isinstance(call, relax.Call)
            or call.op not in _ROUNDING
            or not isinstance(call.args[0], tvm.ir.GenericConst)
        ):
            return binding
        parameter = relax.Var(f"held{len(hidden)}", call.args[0].ty)
        hidden[parameter] = call.args[0].value
        arguments = [parameter, *call.args[1:]]
        return relax.VarBinding(binding.var, relax.Call(call.op, arguments, call.attrs, call.ty_args))

    main = with_blocks(module[ENTRY], lambda block: type(block)([shown(binding) for binding in block.bindings]))
    if not hidden:
        return module
    opened = with_main(module, with_blocks(main, lambda block: block, [*hidden]))
    passes = [relax.transform.FoldConstant(), relax.transform.BindParams(ENTRY, hidden)]
    folded: tvm.IRModule = tvm.transform.Sequential(passes)(opened)
    return folded


class _Writer:
    """Writes one block."""

    def __init__(self, block: Block, matcher: Matcher, stand_ins: StandIns) -> None:
        self._block, self._matcher, self._stand_ins = block, matcher, stand_ins
        self._tensors = matcher.run()
        # Without values: sets whose order is always the same.
        self._wanted: dict[Any, None] = {}  # variables on plain layout
        self._wanted_bytes: dict[Value, None] = {}
        self._blocked: dict[Value, Any] = {}  # by bytes, the variable on blocked layout
        self._bindings: list[Any] = []

    def run(self) -> relax.DataflowBlock:
        """Return the new block: what is needed, in the old order."""
        self._want()
        for value in self._wanted_bytes:
            if value.variable not in self._block.origins:  # it comes from outside
                self._write_bytes(value)
        for variable, binding in self._block.origins.items():
            value = self._block.values[variable]
            own = value.variable is variable
            if variable in self._wanted:
                if own and self._is_numbers(value):
                    self._write_numbers(value)
                else:
                    self._bindings.append(binding)
            if own and value in self._wanted_bytes:
                self._write_bytes(value)
        return relax.DataflowBlock(self._bindings)

    def _is_numbers(self, value: Value) -> bool:
        return value in self._tensors and self._tensors[value].grid is None

    def _want(self) -> None:
        """Find out what is needed, from the end to the beginning."""
        self._wanted.update(dict.fromkeys(self._block.escaping))
        for variable, binding in reversed(self._block.origins.items()):
            value = self._block.values[variable]
            own = value.variable is variable
            if own and value in self._wanted_bytes:
                self._want_sources(value)
            if variable in self._wanted:
                numbers = self._matcher.numbers(value) if own and value not in self._tensors else None
                if numbers is not None:
                    self._tensors[value] = numbers
                if own and self._is_numbers(value):
                    self._want_sources(value)
                else:
                    self._wanted.update(dict.fromkeys(relax.analysis.free_vars(binding.value)))

    def _want_sources(self, value: Value) -> None:
        for region in self._tensors[value].regions:
            if region.reads_plain:
                self._wanted[region.data.variable] = None
            else:
                self._wanted_bytes[region.data] = None
            self._wanted_bytes.update({use.other: None for use in region.done if use.other is not None})

    def _bind(self, variable: Any, expression: Any) -> Any:
        self._bindings.append(relax.VarBinding(variable, expression))
        return variable

    def _new(self, name: str, shape: Sequence[int], dtype: str, expression: Any) -> Any:
        return self._bind(relax.DataflowVar(name, relax.TensorType(shape, dtype)), expression)

    def _write_bytes(self, value: Value) -> None:
        """Write the layers that make bytes; all but the first write into the tensor that there is then."""
        tensor = self._tensors[value]
        place = tensor.place
        latest = None
        for region in tensor.regions:
            call = self._call(region, latest)
            latest = self._new(f"{value.variable.name}_bytes", place.shape, place.dtype, call)
        self._blocked[value] = latest

    def _write_numbers(self, value: Value) -> None:
        (region,) = self._tensors[value].regions
        place, variable, call = region.bare.out, value.variable, self._call(region)
        plain = replace(place, lanes=1)
        if place.lanes > 1:
            blocked = self._new(f"{variable.name}_blocked", place.shape, place.dtype, call)
            if _is_plain(place):
                self._bind(variable, relax.op.reshape(blocked, value.shape))
                return
            call = self._stand_ins.call(Map(place, plain), [blocked])
        if plain.shape == value.shape:
            self._bind(variable, call)
        else:
            image = self._new(f"{variable.name}_image", plain.shape, plain.dtype, call)
            self._bind(variable, relax.op.reshape(image, value.shape))

    def _call(self, region: Region, buffer: Any = None) -> Any:
        """Return the call of a region's kernel; `buffer` is the tensor that it writes a part of, if any."""
        layer = region.layer(self._matcher.place)
        if buffer is None and region.is_copy and _is_plain(layer.out):
            return relax.op.reshape(region.data.variable, layer.out.shape)
        arguments = [self._data(region, layer.data), *_constants(layer, region), *self._operands(layer, region)]
        return self._stand_ins.call(layer, arguments, buffer)

    def _operands(self, layer: ImageLayer, region: Region) -> Iterator[Any]:
        """Yield what the post-ops take: other tensors, and numbers for each channel."""
        numbers = iter(
            grids.per_channel(layer, region.grids, [one.numbers for one in region.done if one.numbers is not None])
        )
        for use in region.done:
            if use.other is not None:
                yield self._blocked[use.other]
            elif use.numbers is not None:
                yield relax.const(next(numbers), "float32")

    def _data(self, region: Region, place: Activation) -> Any:
        if not region.reads_plain:
            return self._blocked[region.data]
        variable = region.data.variable
        if place.shape == region.data.shape:
            return variable
        return self._new(f"{variable.name}_image", place.shape, place.dtype, relax.op.reshape(variable, place.shape))


def _is_plain(place: Activation) -> bool:
    """Whether blocks of channels lie as without blocks: those of images of one pixel, if the channels fill them."""
    return place.height == place.width == 1 and place.channels % place.lanes == 0 and not place.is_part


def _constants(layer: ImageLayer, region: Region) -> list[Any]:
    """Return the constant arguments of a layer's kernel, with the weights before they are packed."""
    found: list[NDArray[Any]] = []
    above = 0.0
    if isinstance(layer, Conv) and region.weights is not None:
        weights, grid = region.weights, region.grid
        unit = weights.scales * grid.scale  # a channel whose weights are all zero may have none
        bias = np.zeros(len(unit)) if region.bias is None else region.bias
        whole = np.divide(bias, unit, out=np.zeros(len(unit)), where=unit != 0)
        sums, above = grids.sums(layer, grid, weights.numbers, whole), grids.fraction(whole)
        low, raised = grids.lowered(weights.numbers)
        found = [weights.numbers if layer.is_depthwise else low, sums]
        found += [grids.scales(layer, grid, weights.scales, region.grids)]
        found += [grids.offsets(layer, raised)] if layer.offset else []
    if grids.parameter_count(layer):
        found.append(grids.parameters(layer, region.grid, region.grids, above))
    return [relax.const(one, str(one.dtype)) for one in found]
