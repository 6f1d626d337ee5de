"""Kernels of the CPU backend, run on numpy arrays and compared with ONNX Runtime: what the templates' tests share.

Arrays are NCHW here; blocks are made and undone at the border of `run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import tvm

from tests.support import nets
from tests.support.nets import node, value
from toolchain.backends.cpu.kernels.sparse.weights import example as weights_with_zero_blocks
from toolchain.backends.cpu.layers import Activation, Conv, PostOp
from toolchain.backends.cpu.machine import Machine, this_machine

NATIVE = this_machine()
AARCH64 = tvm.target.Target(
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "mattr": ["+neon"], "num-cores": 4}
)
ARMV7 = tvm.target.Target(
    {
        "kind": "llvm",
        "mtriple": "armv7l-linux-gnueabihf",
        "mcpu": "cortex-a9",
        "mattr": ["+neon"],
        "mfloat-abi": "hard",
        "num-cores": 2,
    }
)

# What templates are tried with on this machine, whatever it is: LLVM splits vectors that are too wide.
WIDE, MIDDLE, NARROW = Machine(16, 32, cores=2), Machine(8, 16, cores=2), Machine(4, 32, cores=2)


def random(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Return normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- blocks ----------------------------------------------------------------------------------------------------


def blocked(array: np.ndarray, place: Activation, filler: float = 0.0) -> np.ndarray:
    """Return an NCHW array as the buffer that `place` describes; blocks of others hold NaN.

    Args:
        array: [batch, channels, height, width].
        place: Where it lies.
        filler: What the channels behind the last one hold.
    """
    count, channels, height, width = array.shape
    padded = np.full((count, place.blocks * place.lanes, height, width), filler, array.dtype)
    padded[:, :channels] = array
    buffer = np.full(place.shape, np.nan, array.dtype)
    split = padded.reshape(count, place.blocks, place.lanes, height, width).transpose(0, 1, 3, 4, 2)
    buffer[:, place.first : place.first + place.blocks] = split if place.lanes > 1 else split[..., 0]
    return buffer


def unblocked(buffer: np.ndarray, place: Activation) -> np.ndarray:
    """Return what a buffer holds for `place` as NCHW, without the channels that fill up the last block."""
    own = buffer[:, place.first : place.first + place.blocks]
    if place.lanes > 1:
        count, blocks, height, width, lanes = own.shape
        own = own.transpose(0, 1, 4, 2, 3).reshape(count, blocks * lanes, height, width)
    return own[:, : place.channels]


def by_channel(vector: np.ndarray, place: Activation) -> np.ndarray:
    """Return one number for each channel as [blocks, lanes], zeros behind the last channel."""
    padded = np.zeros(place.blocks * place.lanes, vector.dtype)
    padded[: vector.size] = vector
    return padded.reshape(place.blocks, place.lanes)


# --- kernels ---------------------------------------------------------------------------------------------------


def compiled(function: tvm.tirx.PrimFunc, target: tvm.target.Target = NATIVE) -> Callable[..., Any]:
    """Build a kernel; call it with TVM tensors, the result last."""
    return tvm.compile(tvm.IRModule({"main": function}), target=target)["main"]


def assembly(function: tvm.tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Return the assembly code of a kernel, also for another machine."""
    return str(tvm.compile(tvm.IRModule({"main": function}), target=target).mod.inspect_source("asm"))


def run(function: tvm.tirx.PrimFunc, arrays: Sequence[np.ndarray], result: np.ndarray, *size: int) -> np.ndarray:
    """Build a kernel, call it and return the result.

    Args:
        function: The kernel.
        arrays: Its arguments but the last.
        result: What the last argument holds before; it is not changed.
        size: What a kernel for every size takes behind it.
    """
    out = tvm.runtime.tensor(result)
    compiled(function)(*(tvm.runtime.tensor(array) for array in arrays), out, *size)
    return out.numpy()


# --- references ------------------------------------------------------------------------------------------------


def applied(array: np.ndarray, epilogue: Sequence[PostOp], operands: Sequence[np.ndarray]) -> np.ndarray:
    """Do steps with numpy; operands are NCHW, or one number for each channel."""
    given = iter(operands)
    for op in epilogue:
        operand = next(given) if op.takes_argument else None
        if operand is not None and operand.ndim == 1:
            operand = operand[:, None, None]
        array = _POST_OPS[op.kind](array, operand, *op.values)
    return array


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_POST_OPS: dict[str, Callable[..., np.ndarray]] = {
    "add": lambda x, other: x + other,
    "shift": lambda x, other: x + other,
    "mul": lambda x, other: x * other,
    "scale": lambda x, other: x * other,
    "relu": lambda x, _: np.maximum(x, 0),
    "clip": lambda x, _, least, greatest: np.clip(x, least, greatest),
    "leaky_relu": lambda x, _, slope: np.where(x < 0, slope * x, x),
    "sigmoid": lambda x, _: _sigmoid(x),
    "silu": lambda x, _: x * _sigmoid(x),
    "gelu": lambda x, _: x * (0.5 + 0.5 * np.vectorize(math.erf)(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x, _: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "tanh": lambda x, _: np.tanh(x),
    "hard_sigmoid": lambda x, _, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "hard_swish": lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1),
}


def one_node(name: str, inputs: Mapping[str, np.ndarray], **attributes: Any) -> np.ndarray:
    """Return what ONNX Runtime makes of one operator whose inputs are given in order."""
    feeds = [value(key, array.shape, str(array.dtype)) for key, array in inputs.items()]
    proto = nets.model([node(name, [*inputs], ["y"], **attributes)], feeds, [value("y", None)])
    return nets.run(proto, inputs)[0]


def conv(layer: Conv, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a layer's convolution without bias and steps, as ONNX Runtime computes it."""
    attributes = {"strides": layer.strides, "pads": layer.padding, "dilations": layer.dilation, "group": layer.groups}
    return one_node("Conv", {"x": data, "w": weights}, **attributes)


# --- whole layers ----------------------------------------------------------------------------------------------


def layer_of(
    data: tuple[int, int, int, int],
    channels: int,
    kernel: tuple[int, int],
    lanes: int,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    bias: bool = True,
    epilogue: tuple[PostOp, ...] = (),
    plain: bool = False,
) -> Conv:
    """Return a convolution of NCHW data; `add` and `mul` steps get an operand in a buffer of its own."""
    (batch, inputs, *size), (top, left, bottom, right) = data, padding
    height, width = (
        (extent + pad - dilated * (taps - 1) - 1) // stride + 1
        for extent, pad, taps, stride, dilated in zip(
            size, (top + bottom, left + right), kernel, strides, dilation, strict=True
        )
    )
    source = Activation(batch, inputs, *size, 1 if plain else lanes)
    out = Activation(batch, channels, height, width, lanes)
    placed = tuple(replace(op, other=op.other or out) if op.kind in {"add", "mul"} else op for op in epilogue)
    return Conv(source, out, kernel, strides, padding, dilation, groups, bias, placed)


@dataclass(frozen=True)
class Inputs:
    """Random arrays for a convolution.

    Attributes:
        data: NCHW.
        weights: OIHW, with zero blocks where the layer has some.
        bias: One number for each output channel.
        operands: What the epilogue take: NCHW, or one number for each channel.
    """

    data: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    operands: tuple[np.ndarray, ...]


def inputs_of(layer: Conv) -> Inputs:
    """Return random arrays for a layer, always the same; the sums have a variance of about 1."""
    out = layer.out
    _, inputs, height, width = layer.weights_shape
    weights = random(layer.weights_shape, 1) / np.float32(np.sqrt(inputs * height * width))
    if layer.vectors:
        weights *= weights_with_zero_blocks(layer, layer.out.lanes) != 0
    taken = [op for op in layer.epilogue if op.takes_argument]
    return Inputs(
        random((layer.data.batch, layer.data.channels, layer.data.height, layer.data.width)),
        weights,
        random((out.channels,), 2),
        tuple(
            random((out.batch, out.channels, out.height, out.width) if op.other else (out.channels,), seed)
            for seed, op in enumerate(taken, 3)
        ),
    )


def expected(layer: Conv, inputs: Inputs) -> np.ndarray:
    """Return a layer's result, NCHW."""
    sums = conv(layer, inputs.data, inputs.weights)
    if layer.bias:
        sums = sums + inputs.bias[:, None, None]
    return applied(sums, layer.epilogue, inputs.operands)


def arguments(template: ModuleType, layer: Conv, machine: Machine, config: Any, inputs: Inputs) -> list[np.ndarray]:
    """Return the arguments of a layer's kernel but the last. Fillers of the data hold a number, to see it ignored."""
    found = [blocked(inputs.data, layer.data, filler=3.0), template.pack(layer, machine, config, inputs.weights)]
    if layer.bias:
        found.append(by_channel(inputs.bias, layer.out))
    taken = [op for op in layer.epilogue if op.takes_argument]
    for op, operand in zip(taken, inputs.operands, strict=True):
        found.append(blocked(operand, op.other) if op.other else by_channel(operand, layer.out))
    return found


def computed(template: ModuleType, layer: Conv, machine: Machine, config: Any) -> np.ndarray:
    """Return the buffer that a layer's kernel writes to; what it does not write to stays 77."""
    inputs = inputs_of(layer)
    given = arguments(template, layer, machine, config, inputs)
    return run(template.kernel(layer, machine, config), given, np.full(layer.out.shape, 77, np.float32))


def check(template: ModuleType, layer: Conv, machine: Machine, config: Any, tolerance: float = 2e-5) -> None:
    """Compare a layer's kernel with the reference; nothing outside its part may change, fillers must be finite."""
    buffer = computed(template, layer, machine, config)
    place, wanted = layer.out, expected(layer, inputs_of(layer))
    np.testing.assert_allclose(unblocked(buffer, place), wanted, rtol=tolerance, atol=tolerance)
    others = [block for block in range(buffer.shape[1]) if not place.first <= block < place.first + place.blocks]
    assert (buffer[:, others] == 77).all()
    assert np.isfinite(buffer).all()


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "odd channels and sizes": {"data": (2, 24, 9, 13), "channels": 40, "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    "plain": {"data": (1, 3, 21, 22), "channels": 24, "kernel": (7, 7), "strides": (2, 2), "padding": (3, 3, 3, 3)},
    "plain and wide": {"data": (2, 3, 27, 31), "channels": 20, "kernel": (11, 11), "strides": (4, 4)},
    "one plain channel": {"data": (1, 1, 12, 12), "channels": 20, "kernel": (3, 3), "padding": (0, 0, 1, 1)},
    "pointwise": {"data": (1, 40, 13, 7), "channels": 112, "kernel": (1, 1)},
    "pointwise, strided": {"data": (1, 32, 8, 9), "channels": 32, "kernel": (1, 1), "strides": (2, 2)},
    "deep": {"data": (1, 264, 7, 7), "channels": 32, "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    "deep, pointwise": {"data": (2, 600, 7, 7), "channels": 64, "kernel": (1, 1)},
    "one pixel": {"data": (1, 64, 1, 1), "channels": 160, "kernel": (1, 1)},
    "images of one pixel": {"data": (3, 24, 1, 1), "channels": 20, "kernel": (1, 1)},
    "one row": {"data": (1, 32, 1, 35), "channels": 32, "kernel": (1, 7), "padding": (0, 3, 0, 3)},
    "one column": {"data": (1, 32, 17, 1), "channels": 32, "kernel": (7, 1), "padding": (3, 0, 3, 0)},
    "one column, in steps": {
        "data": (2, 40, 23, 1),
        "channels": 24,
        "kernel": (4, 1),
        "strides": (2, 1),
        "padding": (2, 0, 1, 0),
        "dilation": (3, 1),
    },
    "whole image": {"data": (2, 16, 5, 5), "channels": 48, "kernel": (5, 5)},
    "uneven": {
        "data": (1, 16, 17, 19),
        "channels": 48,
        "kernel": (3, 5),
        "strides": (2, 1),
        "padding": (1, 0, 2, 3),
        "dilation": (2, 1),
    },
    "far apart": {"data": (1, 16, 19, 7), "channels": 16, "kernel": (3, 3), "padding": (6,) * 4, "dilation": (6, 6)},
    "mostly padding": {"data": (1, 16, 2, 3), "channels": 16, "kernel": (3, 3), "padding": (4, 4, 4, 4)},
    "groups that narrow": {"data": (1, 240, 5, 9), "channels": 60, "kernel": (1, 1), "groups": 3},
    "groups that widen": {"data": (1, 60, 9, 5), "channels": 240, "kernel": (1, 1), "groups": 3},
    "odd groups": {"data": (1, 54, 6, 6), "channels": 216, "kernel": (3, 3), "groups": 3, "bias": False},
    "two groups": {"data": (1, 96, 6, 7), "channels": 64, "kernel": (5, 5), "padding": (2, 2, 2, 2), "groups": 2},
    "many groups": {"data": (1, 64, 6, 6), "channels": 64, "kernel": (3, 3), "padding": (1,) * 4, "groups": 16},
    "groups of two blocks and a half": {"data": (1, 24, 5, 6), "channels": 120, "kernel": (3, 3), "groups": 3},
    "several from each": {"data": (1, 10, 6, 6), "channels": 30, "kernel": (3, 3), "groups": 10},
}
"""Arguments of `layer_of` for convolutions of awkward shapes; those named `plain` read plain NCHW."""
