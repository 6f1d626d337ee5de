"""Layers of quantised networks on bytes: convolutions and dense layers as dot products of four int8.

A layer that multiplies dequantised bytes with dequantised weights is written anew: its bytes are packed four to an
int32, channels last, padded with their zero; their dot products are summed up in int32, which is exact, and only then
scaled. What is between layers stays as the file has it, and so do layers in groups, and those whose sums could leave
int32 or whose scales could leave single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx

from toolchain.backends.graph import quantization
from toolchain.backends.graph.values import Operation, read, shape_of
from toolchain.backends.mali.dots import dot4

_ENTRY = "main"
_BYTE, _FOUR = "int8", 4
_ENDS = (-128, 127)
_IMAGE, _MATRIX = 4, 2


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer on bytes.

    Attributes:
        bytes: Its data as bytes, NCHW or a matrix.
        shape: Their shape as NCHW.
        grid: What the bytes say, as int8.
        weights: What they are multiplied with, OIHW, and the scale of each output channel.
        strides: Down and across.
        padding: Above, left, below, right.
        dilation: Down and across.
    """

    bytes: Any
    shape: tuple[int, ...]
    grid: quantization.Grid
    weights: quantization.Weights
    strides: Sequence[int] = (1, 1)
    padding: Sequence[int] = (0, 0, 0, 0)
    dilation: Sequence[int] = (1, 1)


def on_bytes(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose layers on dequantised bytes compute with those.

    Args:
        module: Operators as the importer writes them, before constants are folded.
    """
    main, builder = module[_ENTRY], relax.BlockBuilder(module)
    blocks = [_block(builder, one, module) if isinstance(one, relax.DataflowBlock) else one for one in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    written = builder.get()
    functions = dict(written.functions_items())
    functions[written.get_global_var(_ENTRY)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    done: tvm.IRModule = relax.transform.Normalize()(tvm.IRModule(functions, module.attrs, module.global_infos))
    return done


def _block(builder: relax.BlockBuilder, block: relax.DataflowBlock, module: tvm.IRModule) -> relax.DataflowBlock:
    found = {one.out.variable: layer for one in read(block, module).operations if (layer := _layer(one)) is not None}
    bindings: list[Any] = []
    for binding in block.bindings:
        layer = found.get(binding.var)
        bindings += [binding] if layer is None else _written(builder, binding.var, layer)
    return relax.DataflowBlock(bindings)


def _layer(operation: Operation) -> _Layer | None:
    """Return what a convolution or a product of matrices computes, if that is for dot products of bytes."""
    if operation.name not in {"nn.conv2d", "matmul"} or operation.out.dtype != "float32":
        return None
    data, held = operation.inputs
    if not quantization.is_dequantize(data.maker):
        return None
    assert data.maker is not None  # noqa: S101 - `is_dequantize` says so
    grid, weights = quantization.grid_of(data.maker, _BYTE), quantization.weights(held)
    bytes_ = data.maker.inputs[0]
    if grid is None or weights is None or bytes_.variable is None or bytes_.shape is None:
        return None
    if weights.has_offset or not _is_exact(grid, weights):
        return None
    if operation.name == "matmul":
        return _dense(bytes_, grid, weights)
    return _convolution(operation.attributes, bytes_, grid, weights)


def _convolution(attributes: Any, value: Any, grid: quantization.Grid, weights: quantization.Weights) -> _Layer | None:
    layouts = (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout))
    if layouts != ("NCHW", "OIHW", "NCHW") or int(attributes.groups) != 1:
        return None
    numbers = [[int(one) for one in getattr(attributes, name)] for name in ("strides", "padding", "dilation")]
    return _Layer(value.variable, value.shape, grid, weights, *numbers)


def _is_exact(grid: quantization.Grid, weights: quantization.Weights) -> bool:
    """Whether sums fit int32 whatever the bytes are, and scales are neither lost nor endless in single precision."""
    limits, single = np.iinfo(np.int32), np.finfo(np.float32)
    above = max(abs(end - zero) for end in _ENDS for zero in (0, grid.zero))
    sums = abs(weights.numbers.astype(np.int64)).reshape(len(weights.numbers), -1).sum(axis=1)
    scales = abs(weights.scales * grid.scale)
    return bool(sums.max() * above <= limits.max and np.all((scales >= single.tiny) & (scales <= single.max)))


def _dense(value: Any, grid: quantization.Grid, weights: quantization.Weights) -> _Layer | None:
    """Return a product of matrices as a convolution of pixels."""
    if len(value.shape) != _MATRIX or weights.numbers.ndim != _MATRIX:
        return None
    numbers = weights.numbers[:, :, None, None]
    return _Layer(value.variable, (*value.shape, 1, 1), grid, quantization.Weights(numbers, weights.scales))


def _written(builder: relax.BlockBuilder, variable: Any, layer: _Layer) -> list[Any]:
    """Return the bindings of a layer, the last of which is that of its variable."""
    bindings: list[Any] = []

    def bound(name: str, value: Any, shape: Sequence[int], dtype: str) -> Any:
        made = relax.DataflowVar(name, relax.TensorType(list(shape), dtype))
        bindings.append(relax.VarBinding(made, value))
        return made

    name, source, kind = str(variable.name), layer.bytes, str(layer.bytes.ty.dtype)
    if shape_of(source.ty) != layer.shape:
        source = bound(f"{name}_pixels", relax.op.reshape(source, list(layer.shape)), layer.shape, kind)
    packing = builder.call_te(lambda data: _packed(data, layer), source, primfunc_name_hint="packed")
    packed = bound(f"{name}_packed", packing, shape_of(packing.ty_args[0]) or (), "int32")
    sums = layer.weights.numbers.astype(np.int64).sum(axis=(1, 2, 3)) * layer.grid.zero
    held = [_in_fours(layer.weights.numbers), sums.astype(np.int32), _scales(layer)]
    constants = [relax.const(one) for one in held]
    calling = builder.call_te(
        lambda *given: _convolved(layer, *given), packed, *constants, primfunc_name_hint="conv2d_int8"
    )
    last = shape_of(calling.ty_args[0]) or ()
    made = bound(f"{name}_last", calling, last, "float32")
    whole = shape_of(variable.ty) or ()
    image = relax.op.permute_dims(made, [0, 3, 1, 2]) if len(whole) == _IMAGE else relax.op.reshape(made, list(whole))
    return [*bindings, relax.VarBinding(variable, image)]


def _scales(layer: _Layer) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (layer.weights.scales * layer.grid.scale).astype(np.float32)
    return found


def _in_fours(numbers: NDArray[np.int16]) -> NDArray[np.int32]:
    """Return weights OIHW as int32 of four input channels each, HWIO."""
    outputs, inputs, height, width = numbers.shape
    whole = np.zeros((height, width, outputs, -(-inputs // _FOUR) * _FOUR), np.int8)
    whole[..., :inputs] = numbers.transpose(2, 3, 0, 1)
    packed: NDArray[np.int32] = np.ascontiguousarray(whole.view("<i4").transpose(0, 1, 3, 2))
    return packed


def _packed(data: te.Tensor, layer: _Layer) -> te.Tensor:
    """Compute int32 of four channels each, [batch, rows, columns, fours], padded with what says zero."""
    batch, channels, height, width = layer.shape
    top, left, bottom, right = layer.padding
    shape = (batch, height + top + bottom, width + left + right, -(-channels // _FOUR))
    above = quantization.LEAST[str(data.dtype)] - quantization.LEAST[_BYTE]
    zero = tirx.const(layer.grid.zero, "int32")

    def byte(image: Any, row: Any, column: Any, channel: Any) -> Any:
        inside = [row >= top, row < top + height, column >= left, column < left + width, channel < channels]
        value = data(image, channel, row - top, column - left).astype("int32") - above
        return tirx.if_then_else(tirx.all(*inside), value, zero) & 255

    def four(image: Any, row: Any, column: Any, group: Any) -> Any:
        first, *others = (byte(image, row, column, group * _FOUR + place) << 8 * place for place in range(_FOUR))
        for other in others:
            first = first | other
        return first

    return te.compute(shape, four, name="packed")


def _convolved(layer: _Layer, packed: te.Tensor, weights: te.Tensor, zeros: te.Tensor, scales: te.Tensor) -> te.Tensor:
    """Compute a convolution in NHWC, in numbers."""
    batch, height, width, groups = (int(one) for one in packed.shape)
    rows, columns, _, outputs = (int(one) for one in weights.shape)
    (down, across), (far, wide) = layer.strides, layer.dilation
    shape = (batch, (height - far * (rows - 1) - 1) // down + 1, (width - wide * (columns - 1) - 1) // across + 1)
    over = [te.reduce_axis((0, size), name) for size, name in ((rows, "ry"), (columns, "rx"), (groups, "rc"))]
    ry, rx, rc = over

    def step(image: Any, row: Any, column: Any, channel: Any) -> Any:
        place = packed(image, row * down + ry * far, column * across + rx * wide, rc)
        return te.sum(dot4(place, weights(ry, rx, rc, channel)), axis=over)

    total = te.compute((*shape, outputs), step, name="conv2d_int8")
    return te.compute(
        (*shape, outputs),
        lambda n, y, x, o: (total(n, y, x, o) - zeros(o)).astype("float32") * scales(o),
        name="scaled",
    )
