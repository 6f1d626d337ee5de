"""Find the layers of a quantized network that VTA can compute, and say of the others why it cannot.

The pattern is dequantize, convolution, bias, sum with another int8 tensor, activation, quantize.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.graph.values import Block, Operation, Value, four, pair
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.codegen.tilings import MOST_PADDING
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.network.packing import Folding, blocks, filled, folding, image
from toolchain.backends.vta.network.requantize import (
    QUANTIZE,
    Readers,
    UnfitError,
    exponents,
    follow,
    grid,
    integers,
    is_dequantize,
    is_quantize,
)

_CONV, _DENSE = "nn.conv2d", "matmul"
_MOST_PADDING = 15  # of four bits
_MOST_SIZE = 2**16 - 1
_MATRIX, _IMAGE = 2, 4  # dimensions
_MOST_TIMES = 4  # the multiplications of groups, where they are one layer with zeros for weights

Edges = tuple[int, int, int, int]


@dataclass(frozen=True)
class Refusal:
    """A layer that stays on the CPU: its number in the order of the file and its shapes, the cause, and what helps."""

    layer: str
    cause: str
    hint: str


@dataclass(frozen=True, eq=False)
class Match:
    """A layer that VTA computes.

    Attributes:
        layer: The layer as the array computes it.
        data: Its int8 input.
        weights: OIHW; where blocks stand alone, I is the place within a block.
        bias: One number for each output channel, half a step of the rounding included.
        channel_shifts: By how much more each channel's sums are shifted; None if by nothing.
        residual: The int8 tensor that is added; None if there is none.
        out: Its int8 result.
        folding: How pixels of the input become channels before; None where they do not.
    """

    layer: Conv2d
    data: Value
    weights: NDArray[np.int8]
    bias: NDArray[np.int32]
    channel_shifts: NDArray[np.int32] | None
    residual: Value | None
    out: Value
    folding: Folding | None = None


def find(block: Block, config: VtaConfig) -> tuple[list[Match], list[Refusal]]:
    """Return the layers of a block that VTA computes, and the convolutions and quantized dense layers that it cannot.

    Args:
        block: The operations, with constants folded but for int8 weights.
        config: The machine.
    """
    readers: Readers = defaultdict(list)
    for operation in block.operations:
        for value in operation.inputs:
            readers[value].append(operation)
    matches: list[Match] = []
    refused: list[Refusal] = []
    for number, operation in enumerate(filter(_is_layer, block.operations), 1):
        try:
            matches.append(_match_layer(operation, readers, config))
        except UnfitError as unfit:
            refused.append(Refusal(_title(number, operation), unfit.cause, unfit.hint))
    return matches, refused


def _is_layer(operation: Operation) -> bool:
    if operation.name != _DENSE:
        return operation.name == _CONV
    # Dense layers on floats are neither matched nor refused.
    of_matrices = all(len(value.shape or ()) == _MATRIX for value in operation.inputs)
    return of_matrices and is_dequantize(operation.inputs[0].maker)


def _title(number: int, operation: Operation) -> str:
    kind = "convolution" if operation.name == _CONV else "dense layer"
    data, weights, out = (
        "x".join(map(str, value.shape)) if value.shape else "?" for value in (*operation.inputs, operation.out)
    )
    return f"{kind} {number}: {data}, {weights} -> {out}"


def _match_layer(operation: Operation, readers: Readers, config: VtaConfig) -> Match:
    data, outside = _split_padding(operation.inputs[0])
    if data is None or not is_dequantize(data) or data.inputs[0].variable is None:
        raise UnfitError("its input is floats: it is not quantized in the file", QUANTIZE)
    window = _window(operation, outside, config) if operation.name == _CONV else {}
    array, stands_alone = _ungroup(_weights_oihw(operation), operation, config)
    outputs = array.shape[0]
    chain = follow(operation.out, outputs, readers)
    source = grid(data, "its input")
    arithmetic = integers(chain, array, source.exponent + _weight_exponents(operation), source.zero)
    batch, inputs, height, width = image(data.out.shape or ())
    layer = Conv2d(
        batch=batch,
        height=height,
        width=width,
        in_channels=filled(inputs, config.block),
        out_channels=filled(outputs, config.block),
        shift=arithmetic.shift,
        low=arithmetic.low,
        high=arithmetic.high,
        bias=bool(arithmetic.bias.any()),
        residual_shift=arithmetic.residual_shift,
        alone=stands_alone,
        channel_shifts=arithmetic.channel_shifts is not None,
        pad=source.zero if any(window.get("padding", ())) else 0,
        **window,
    )
    residual = None if chain.residual is None else chain.residual.inputs[0]
    match = Match(layer, data.inputs[0], array, arithmetic.bias, arithmetic.channel_shifts, residual, chain.end.out)
    # Folding changes the window, so maxima are added after it.
    match = _fold_image(match, inputs, config)
    layer, end = fuse_pool(match.layer, chain.end, readers)
    return replace(match, layer=layer, out=end.out)


def _fold_image(match: Match, channels: int, config: VtaConfig) -> Match:
    """Return a layer on few channels as one on the same image with more of them and fewer pixels."""
    layer = match.layer
    fold = folding(layer, channels, config.block)
    if fold is None:
        return match
    height, width = fold.size
    folded = replace(
        layer,
        height=height,
        width=width,
        in_channels=filled(fold.channels(channels), config.block),
        kernel=fold.window,
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        pad=0,
    )
    return replace(match, layer=folded, weights=fold.weights(match.weights), folding=fold)


def _split_padding(value: Value) -> tuple[Operation | None, Edges]:
    """Return the operation in front of a `pad`, and the padding at each edge; without a `pad`, the maker itself."""
    maker = value.maker
    if maker is None or maker.name != "pad":
        return maker, (0, 0, 0, 0)
    *before, top, left = map(int, maker.values[:_IMAGE])
    *behind, bottom, right = map(int, maker.values[_IMAGE:])
    if any(before) or any(behind):
        raise UnfitError("its channels are padded")
    return maker.inputs[0].maker, (top, left, bottom, right)


def _window(operation: Operation, outside: Edges, config: VtaConfig) -> dict[str, Any]:
    """Return the window of a convolution as arguments of `Conv2d`."""
    attributes, shape = operation.attributes, operation.inputs[1].shape or ()
    if pair(attributes.dilation) != (1, 1):
        raise UnfitError("its window is dilated")
    layouts = (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout))
    if layouts != ("NCHW", "OIHW", "NCHW"):
        raise UnfitError("its tensors are not NCHW")
    kernel, stride = pair(shape[2:]), pair(attributes.strides)
    padding = four(np.add(four(attributes.padding), outside))
    if max(padding) > _MOST_PADDING:
        raise UnfitError(f"its padding is {max(padding)}, but an instruction pads by at most {_MOST_PADDING}")
    if kernel[0] * kernel[1] > min(config.wgt_depth, config.inp_depth) or max(stride) >= config.inp_depth:
        raise UnfitError(f"its window of {kernel[0]}x{kernel[1]} does not fit VTA's memories")
    if max(operation.inputs[0].shape or ()) > _MOST_SIZE:
        raise UnfitError(f"its input is larger than {_MOST_SIZE} along one axis")
    return {"kernel": kernel, "stride": stride, "padding": padding}


def _weight_dequantize(weights: Value) -> Operation:
    """Return the `dequantize` of constant int8 weights."""
    maker = weights.maker
    if maker is not None and maker.name == "permute_dims":
        maker = maker.inputs[0].maker
    if maker is None or not is_dequantize(maker) or maker.inputs[0].constant is None:
        kind = "floats: they are not quantized in the file" if weights.constant is not None else "not constant"
        raise UnfitError(f"its weights are {kind}", QUANTIZE)
    return maker


def _weight_exponents(operation: Operation) -> NDArray[np.int64]:
    """Return the exponent of weights, or one for each output channel of a convolution."""
    rounding = _weight_dequantize(operation.inputs[1])
    powers = exponents(rounding, "its weights")
    by_channel = operation.name == _CONV and int(rounding.attributes.axis) == 0
    if not by_channel and np.unique(powers).size != 1:
        raise UnfitError("the scales of its weights differ between channels", QUANTIZE)
    return powers if by_channel else powers[:1]


def _weights_oihw(operation: Operation) -> NDArray[np.int8]:
    """Return int8 weights as OIHW."""
    value = operation.inputs[1]
    array = _weight_dequantize(value).inputs[0].array
    if operation.name == _CONV:
        return array
    matrix = array if value.maker is not None and value.maker.name == "permute_dims" else array.T
    return matrix[:, :, None, None]


def _ungroup(weights: NDArray[np.int8], operation: Operation, config: VtaConfig) -> tuple[NDArray[np.int8], bool]:
    """Return the weights of groups as those of one group, with zeros between, and whether blocks stand alone.

    Blocks of channels stand alone where each group lies within a block and has as many inputs as outputs.
    """
    outputs, inputs = weights.shape[:2]
    groups = int(operation.attributes.groups) if operation.name == _CONV else 1
    if groups == 1:
        return weights, False
    # Zeros within a block cost nothing, as the array multiplies whole blocks; zeros in other blocks cost their time.
    within = outputs == groups * inputs and config.block % inputs == 0
    times = min(groups, blocks(groups * inputs, config.block))
    if not within and times > _MOST_TIMES:
        raise UnfitError(
            f"it has {groups} groups of {inputs} channels, which do not lie in blocks of {config.block}, and as one "
            f"layer {times} times the multiplications"
        )
    wide = np.zeros((outputs, config.block if within else groups * inputs, *weights.shape[2:]), np.int8)
    each = outputs // groups
    for output in range(outputs):
        first = output // each * inputs
        offset = first % config.block if within else first
        wide[output, offset : offset + inputs] = weights[output]
    return wide, within


# --- maxima that follow a layer --------------------------------------------------------------------------------------

# With a stride, that costs the array no more than to shift and bound all sums, fewer results are written to memory,
# and the CPU has nothing to do. Maxima with a stride of 1 are left to the CPU, whose vectors take 16 bytes as well.

_POOL = "nn.max_pool2d"


def fuse_pool(layer: Conv2d, end: Operation, readers: Readers) -> tuple[Conv2d, Operation]:
    """Return a layer with the maxima that alone read it, and the operation that makes int8 of them.

    Without such maxima, both are returned as they are.

    Args:
        end: The operation that makes int8 of its results.
        readers: The operations that read each value.
    """
    match = _find_pool(end, readers)
    if match is None or layer.residual_shift is not None:
        return layer, end
    pool, last = match
    attributes = pool.attributes
    window, stride, edges = pair(attributes.pool_size), pair(attributes.strides), four(attributes.padding)
    is_nchw = (str(attributes.layout), str(attributes.out_layout)) == ("NCHW", "NCHW")
    if not is_nchw or pair(attributes.dilation) != (1, 1) or stride == (1, 1):
        return layer, end
    pooled_layer = _with_pool(layer, window, stride, edges, (pool.out.shape or ())[2:])
    return (layer, end) if pooled_layer is None else (pooled_layer, last)


def _find_pool(end: Operation, readers: Readers) -> tuple[Operation, Operation] | None:
    """Return the maxima that alone read a layer's result, and the `quantize` behind them on the same grid."""
    numbers = _only_reader(end.out, readers)
    pool = _only_reader(numbers.out, readers) if numbers is not None and is_dequantize(numbers) else None
    last = _only_reader(pool.out, readers) if pool is not None and pool.name == _POOL else None
    if numbers is None or pool is None or last is None or not is_quantize(last):
        return None
    try:
        same = grid(end, "") == grid(numbers, "") == grid(last, "")
    except UnfitError:
        return None
    return (pool, last) if same else None


def _only_reader(value: Value, readers: Readers) -> Operation | None:
    return readers[value][0] if value.is_alone and readers[value] else None


def _with_pool(
    layer: Conv2d, window: tuple[int, int], stride: tuple[int, int], edges: Sequence[int], out_size: Sequence[int]
) -> Conv2d | None:
    """Return a layer with maxima; None if the position that must never be outside may be outside for some window."""
    rows, columns = layer.out_height, layer.out_width
    before, behind = (edges[0], edges[1]), list[int]()
    for size, extent, by, start, count in zip((rows, columns), window, stride, before, out_size, strict=True):
        if start >= extent or (count - 1) * by >= size:
            return None
        behind.append(max(0, (count - 1) * by + extent - start - size))
    outside = (*before, *behind)
    padding = (
        layer.padding[0] + outside[0] * layer.stride[0],
        layer.padding[1] + outside[1] * layer.stride[1],
        layer.padding[2] + outside[2] * layer.stride[0],
        layer.padding[3] + outside[3] * layer.stride[1],
    )
    pooled = replace(
        layer, padding=padding, pool=Pool(window, stride, (outside[0], outside[1], outside[2], outside[3]))
    )
    fits = max(padding) <= MOST_PADDING and (pooled.out_height, pooled.out_width) == tuple(out_size)
    return pooled if fits else None
