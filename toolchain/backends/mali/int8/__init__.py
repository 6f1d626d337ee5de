"""Layers of quantised networks on bytes: convolutions and dense layers as dot products of four int8.

A layer that multiplies dequantised bytes is written anew: it reads its bytes four to an int32, channels last, and its
dot products are summed up in int32, which is exact, and only then scaled. What follows it is done in the same kernel if
bytes come of it (`epilogues`), so that only bytes are passed on from such a layer to the next; sums, concatenations and
maxima of bytes between layers are kernels of bytes, too (`elements`). Convolutions of each channel by itself read and
write bytes, too, and multiply with floats if their weights are such. What is between other layers stays as the file has
it, and so do layers in other groups, and those whose sums could leave int32 or whose scales could leave single
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.graph.values import read, shape_of
from toolchain.backends.mali.int8 import kernels
from toolchain.backends.mali.int8.elements import Elements, elements_of
from toolchain.backends.mali.int8.epilogues import Epilogue, OtherImage, epilogue_of, readers
from toolchain.backends.mali.int8.layers import Layer, layer_of
from toolchain.backends.mali.rewrite import MAIN, with_blocks

__all__ = ["compute_on_bytes"]

_IMAGE = 4


def compute_on_bytes(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose layers on dequantised bytes compute with those.

    Args:
        module: Operators as the importer writes them, before constants are folded.
    """
    main, builder = module[MAIN], relax.BlockBuilder(module)
    blocks = [
        _ByteLayers(builder, block, module).rewrite() if isinstance(block, relax.DataflowBlock) else block
        for block in main.body.blocks
    ]
    rewritten = with_blocks(builder.get(), blocks)
    steps = [relax.transform.Normalize(), relax.transform.DeadCodeElimination()]
    result: tvm.IRModule = tvm.transform.Sequential(steps)(rewritten)
    return result


class _ByteLayers:
    """Writes a block anew."""

    def __init__(self, builder: relax.BlockBuilder, block: relax.DataflowBlock, module: tvm.IRModule) -> None:
        self._builder, self._block = builder, block
        self._layers: dict[Any, Layer] = {}
        self._ends: dict[Any, tuple[Layer, Epilogue]] = {}  # by variable of bytes, which layer they come from
        self._elements: dict[Any, Elements] = {}  # by variable of bytes, of which others they are made
        self._numbers: dict[Any, Any] = {}  # by variable of an image of numbers, the one that has it NHWC
        self._words: dict[Any, Any] = {}  # by variable of bytes, the one that holds four of them in an int32
        self._bindings: list[Any] = []
        self._find(read(block, module).operations)

    def _find(self, operations: Sequence[Any]) -> None:
        by_value = readers(operations)
        for operation in operations:
            layer = layer_of(operation)
            if layer is None:
                continue
            epilogue = epilogue_of(operation, by_value)
            if epilogue is not None and epilogue.out.variable not in self._ends:
                self._ends[epilogue.out.variable] = (layer, epilogue)
            elif layer.is_whole:  # of two layers that are added up, one has the other in its kernel
                self._layers[operation.out.variable] = layer
        for operation in operations:
            elements = elements_of(operation)
            rewritten = {*self._ends, *self._elements}
            if elements is None or elements.out.variable in rewritten:
                continue
            if any(leaf.value.variable in rewritten for leaf in elements.leaves):
                self._elements[elements.out.variable] = elements

    def rewrite(self) -> relax.DataflowBlock:
        """Return the block, with what is no longer used still in it."""
        for binding in self._block.bindings:
            if binding.var in self._ends:
                self._write_bytes(binding.var, *self._ends[binding.var])
            elif binding.var in self._elements:
                self._write_elements(binding.var, self._elements[binding.var])
            elif binding.var in self._layers:
                self._write_numbers(binding.var, self._layers[binding.var])
            else:
                self._bindings.append(binding)
        return relax.DataflowBlock(self._bindings)

    def _write_bytes(self, variable: Any, layer: Layer, epilogue: Epilogue) -> None:
        """Write a layer with what follows it, and bytes for others than layers."""
        channels = len(layer.numbers)
        added = [
            self._image(addend)
            if isinstance(addend, OtherImage)
            else relax.const(kernels.pad_channels(addend, channels))
            for addend in epilogue.added
        ]
        calling = self._builder.call_te(
            lambda *tensors: kernels.convolve_to_bytes(layer, epilogue, *tensors),
            self._packed(layer.bytes, layer.shape),
            *map(relax.const, self._constants(layer)),
            *added,
            primfunc_name_hint=f"{_name(layer)}_requantized",
        )
        self._bind_bytes(variable, calling)

    def _write_elements(self, variable: Any, elements: Elements) -> None:
        """Write bytes that are made of others, element by element."""
        calling = self._builder.call_te(
            lambda *tensors: kernels.elementwise(elements, *tensors),
            *map(self._image, elements.leaves),
            primfunc_name_hint="elements_int8",
        )
        self._bind_bytes(variable, calling)

    def _bind_bytes(self, variable: Any, calling: Any) -> None:
        """Bind what computes bytes, four to an int32, and the bytes themselves for others than layers."""
        words = self._words[variable] = self._bound(variable, "_words", calling)
        shape, kind = shape_of(variable.ty) or (), str(variable.ty.dtype)
        value = self._builder.call_te(
            lambda tensor: kernels.unpack(tensor, shape, kind), words, primfunc_name_hint="unpacked"
        )
        self._bindings.append(relax.VarBinding(variable, value))

    def _image(self, other: OtherImage) -> Any:
        """Return the variable that holds another image for a kernel, NHWC: its bytes, or its numbers."""
        variable = other.value.variable
        if other.grid is not None:
            return self._packed(variable, other.value.shape or ())
        if variable not in self._numbers:
            moved = relax.op.permute_dims(variable, [0, 2, 3, 1])
            batch, channels, height, width = other.value.shape or ()
            kind = relax.TensorType([batch, height, width, channels], "float32")
            transposed = relax.DataflowVar(f"{variable.name}_last", kind, variable.span)
            self._bindings.append(relax.VarBinding(transposed, moved))
            self._numbers[variable] = transposed
        return self._numbers[variable]

    def _write_numbers(self, variable: Any, layer: Layer) -> None:
        """Write a layer whose numbers are wanted."""
        constants = [*self._constants(layer)]
        calling = self._builder.call_te(
            lambda *tensors: kernels.convolve(layer, *tensors),
            self._packed(layer.bytes, layer.shape),
            *map(relax.const, constants),
            primfunc_name_hint=_name(layer),
        )
        output, shape = self._bound(variable, "_last", calling), shape_of(variable.ty) or ()
        is_image = len(shape) == _IMAGE
        if is_image:
            self._numbers[variable] = output
        value = relax.op.permute_dims(output, [0, 3, 1, 2]) if is_image else relax.op.reshape(output, list(shape))
        self._bindings.append(relax.VarBinding(variable, value))

    def _constants(self, layer: Layer) -> list[Any]:
        zeros = [kernels.zero_sums(layer)] if layer.is_whole else []
        return [kernels.pack_weights(layer), *zeros, kernels.pad_channels(layer.scales, len(layer.scales))]

    def _packed(self, source: Any, shape: Sequence[int]) -> Any:
        """Return the variable that holds bytes four to an int32.

        Args:
            source: The variable of the bytes.
            shape: What they are as images, NCHW.
        """
        if source not in self._words:
            image = source
            if shape_of(source.ty) != tuple(shape):
                image = self._bound(source, "_pixels", relax.op.reshape(source, list(shape)), source.ty)
            calling = self._builder.call_te(lambda data: kernels.pack(data, shape), image, primfunc_name_hint="packed")
            self._words[source] = self._bound(source, "_words", calling)
        return self._words[source]

    def _bound(self, like: Any, suffix: str, value: Any, kind: Any = None) -> Any:
        """Bind a new variable that comes from the same node as another one."""
        result_type = value.ty_args[0] if kind is None else relax.TensorType([*value.args[1].values], str(kind.dtype))
        variable = relax.DataflowVar(f"{like.name}{suffix}", result_type, like.span)
        self._bindings.append(relax.VarBinding(variable, value))
        return variable


def _name(layer: Layer) -> str:
    return "depthwise_int8" if layer.by_channel else "conv2d_int8"
