"""Find the layers of a quantized network that VTA can compute, and say of the others why it cannot.

What is looked for is dequantize, convolution, bias, sum with another int8 tensor, activation, quantize.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.graph.values import Block, Operation, Value, four, pair
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.network.chains import (
    QUANTIZE,
    Readers,
    UnfitError,
    exponents,
    follow,
    grid,
    integers,
    is_dequantize,
)
from toolchain.backends.vta.network.folding import Folding, folding
from toolchain.backends.vta.network.packing import blocks, filled, image
from toolchain.backends.vta.network.pooling import pooled

_CONV, _DENSE = "nn.conv2d", "matmul"
_MOST_PADDING = 15  # of four bits
_MOST_SIZE = 2**16 - 1
_MATRIX, _IMAGE = 2, 4  # dimensions
_MOST_TIMES = 4  # the multiplications of groups, where they are one layer with zeros for weights

Edges = tuple[int, int, int, int]


@dataclass(frozen=True)
class Refusal:
    """A layer that stays on the CPU.

    Attributes:
        layer: Which one: its number in the order of the file, and its shapes.
        cause: Why VTA does not compute it.
        hint: What helps.
    """

    layer: str
    cause: str
    hint: str


@dataclass(frozen=True, eq=False)
class Match:
    """A layer that VTA computes.

    Attributes:
        layer: What it computes.
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
    """Return the layers of a block that VTA computes, and the convolutions and quantized dense layers that it does not.

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
            matches.append(_match(operation, readers, config))
        except UnfitError as unfit:
            refused.append(Refusal(_name(number, operation), unfit.cause, unfit.hint))
    return matches, refused


def _is_layer(operation: Operation) -> bool:
    if operation.name != _DENSE:
        return operation.name == _CONV
    return all(len(one.shape or ()) == _MATRIX for one in operation.inputs) and is_dequantize(operation.inputs[0].maker)


def _name(number: int, operation: Operation) -> str:
    kind = "convolution" if operation.name == _CONV else "dense layer"
    data, weights, out = (
        "x".join(map(str, one.shape)) if one.shape else "?" for one in (*operation.inputs, operation.out)
    )
    return f"{kind} {number}: {data}, {weights} -> {out}"


def _match(operation: Operation, readers: Readers, config: VtaConfig) -> Match:
    data, outside = _source(operation.inputs[0])
    if data is None or not is_dequantize(data) or data.inputs[0].variable is None:
        raise UnfitError("its input is floats: it is not quantized in the file", QUANTIZE)
    window = _window(operation, outside, config) if operation.name == _CONV else {}
    array, alone = _spread(_weights(operation), operation, config)
    outputs = array.shape[0]
    chain = follow(operation.out, outputs, readers)
    source = grid(data, "its input")
    whole = integers(chain, array, source.exponent + _of_weights(operation), source.zero)
    batch, inputs, height, width = image(data.out.shape or ())
    layer = Conv2d(
        batch=batch,
        height=height,
        width=width,
        in_channels=filled(inputs, config.block),
        out_channels=filled(outputs, config.block),
        shift=whole.shift,
        low=whole.low,
        high=whole.high,
        bias=bool(whole.bias.any()),
        residual_shift=whole.residual_shift,
        alone=alone,
        channel_shifts=whole.channel_shifts is not None,
        pad=source.zero if any(window.get("padding", ())) else 0,
        **window,
    )
    residual = None if chain.residual is None else chain.residual.inputs[0]
    found = Match(layer, data.inputs[0], array, whole.bias, whole.channel_shifts, residual, chain.end.out)
    found = _folded(found, inputs, config)
    layer, end = pooled(found.layer, chain.end, readers)
    return replace(found, layer=layer, out=end.out)


def _folded(match: Match, channels: int, config: VtaConfig) -> Match:
    """Return a layer on few channels as one on the same image with more of them and fewer pixels."""
    layer = match.layer
    found = folding(layer, channels, config.block)
    if found is None:
        return match
    height, width = found.size
    folded = replace(
        layer,
        height=height,
        width=width,
        in_channels=filled(found.channels(channels), config.block),
        kernel=found.window,
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        pad=0,
    )
    return replace(match, layer=folded, weights=found.weights(match.weights), folding=found)


def _source(value: Value) -> tuple[Operation | None, Edges]:
    """Return what makes the numbers that a layer reads, and what they are padded with at each edge after that."""
    maker = value.maker
    if maker is None or maker.name != "pad":
        return maker, (0, 0, 0, 0)
    *before, top, left = map(int, maker.values[:_IMAGE])
    *behind, bottom, right = map(int, maker.values[_IMAGE:])
    if any(before) or any(behind):
        raise UnfitError("its channels are padded")
    return maker.inputs[0].maker, (top, left, bottom, right)


def _window(operation: Operation, outside: Edges, config: VtaConfig) -> dict[str, Any]:
    """Return how a convolution's window moves."""
    how, shape = operation.attributes, operation.inputs[1].shape or ()
    if pair(how.dilation) != (1, 1):
        raise UnfitError("its window is dilated")
    if (str(how.data_layout), str(how.kernel_layout), str(how.out_layout)) != ("NCHW", "OIHW", "NCHW"):
        raise UnfitError("its tensors are not NCHW")
    kernel, stride = pair(shape[2:]), pair(how.strides)
    padding = four(np.add(four(how.padding), outside))
    if max(padding) > _MOST_PADDING:
        raise UnfitError(f"its padding is {max(padding)}, but an instruction pads by at most {_MOST_PADDING}")
    if kernel[0] * kernel[1] > min(config.wgt_depth, config.inp_depth) or max(stride) >= config.inp_depth:
        raise UnfitError(f"its window of {kernel[0]}x{kernel[1]} does not fit VTA's memories")
    if max(operation.inputs[0].shape or ()) > _MOST_SIZE:
        raise UnfitError(f"its input is larger than {_MOST_SIZE} along one axis")
    return {"kernel": kernel, "stride": stride, "padding": padding}


def _rounding_of(weights: Value) -> Operation:
    """Return what makes numbers of constant int8 weights."""
    maker = weights.maker
    if maker is not None and maker.name == "permute_dims":
        maker = maker.inputs[0].maker
    if maker is None or not is_dequantize(maker) or maker.inputs[0].constant is None:
        kind = "floats: they are not quantized in the file" if weights.constant is not None else "not constant"
        raise UnfitError(f"its weights are {kind}", QUANTIZE)
    return maker


def _of_weights(operation: Operation) -> NDArray[np.int64]:
    """Return the exponent of weights, or one for each channel that a convolution makes."""
    rounding = _rounding_of(operation.inputs[1])
    found = exponents(rounding, "its weights")
    by_channel = operation.name == _CONV and int(rounding.attributes.axis) == 0
    if not by_channel and np.unique(found).size != 1:
        raise UnfitError("the scales of its weights differ between channels", QUANTIZE)
    return found if by_channel else found[:1]


def _weights(operation: Operation) -> NDArray[np.int8]:
    """Return int8 weights as OIHW."""
    value = operation.inputs[1]
    held = _rounding_of(value).inputs[0].array
    if operation.name == _CONV:
        return held
    matrix = held if value.maker is not None and value.maker.name == "permute_dims" else held.T
    return matrix[:, :, None, None]


def _spread(weights: NDArray[np.int8], operation: Operation, config: VtaConfig) -> tuple[NDArray[np.int8], bool]:
    """Return weights with zeros for the inputs of other groups, and whether blocks of channels stand alone.

    They do where groups lie within a block of as many inputs as outputs. Other groups are multiplied as one layer.
    """
    outputs, inputs = weights.shape[:2]
    groups = int(operation.attributes.groups) if operation.name == _CONV else 1
    if groups == 1:
        return weights, False
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
        place = first % config.block if within else first
        wide[output, place : place + inputs] = weights[output]
    return wide, within
