"""A template that computes every layer by the plainest loops: a reference that shares nothing with the fast ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.layers import Conv, Dense, Map, Pool

NAME = "naive"


@dataclass(frozen=True)
class Config:
    pass


def covers(layer):
    return isinstance(layer, (Conv, Dense, Map, Pool))


def configs(layer, machine):
    return [(Config(), 1e18)]


def pack(layer, machine, config, weights):
    return np.ascontiguousarray(weights)


def kernel(layer, machine, config):
    if isinstance(layer, Dense):
        return _dense(layer)
    arguments = [Argument("data", layer.data.shape)]
    if isinstance(layer, Conv):
        arguments.append(Argument("weights", layer.weights_shape))
        if layer.bias:
            arguments.append(Argument("bias", (layer.out.blocks, layer.out.lanes)))
    arguments += [*emit.arguments_of(layer.epilogue, layer.out), Argument("out", layer.out.shape)]

    def body(*buffers):
        out = layer.out
        channels = out.blocks * out.lanes
        with (
            T.serial(0, out.batch) as image,
            T.serial(0, channels) as channel,
            T.serial(0, out.height) as row,
            T.serial(0, out.width) as column,
        ):
            _element(layer, buffers, (image, channel, row, column))

    return emit.kernel(arguments, body, {})


def _at(data, image, channel, row, column):
    block, lane = tirx.floordiv(channel, data.lanes), tirx.floormod(channel, data.lanes)
    return emit.offset(data, image, block, row, column) + lane


def _element(layer, buffers, where):
    image, channel, row, column = where
    data, *rest, out = buffers
    total = T.alloc_buffer((1,), "float32", scope="local")
    if isinstance(layer, Conv):
        weights = rest.pop(0)
        T.buffer_store(total, rest.pop(0)[channel] if layer.bias else tirx.const(0.0, "float32"), [0])
        with T.If(channel < layer.out.channels), T.Then():
            _convolve(layer, data, weights, total, where)
    elif isinstance(layer, Pool):
        _pool(layer, data, total, where)
    else:
        source = channel
        if layer.shuffle:
            groups = layer.shuffle
            source = channel % groups * (layer.data.channels // groups) + channel // groups
        T.buffer_store(total, tirx.const(0.0, "float32"), [0])
        with T.If(channel < layer.data.channels), T.Then():
            T.buffer_store(total, data[_at(layer.data, image, source, row, column)], [0])
    value = total[0]
    for op in layer.epilogue:
        operand = None
        if op.other is not None:
            pixel = (0, 0) if op.other.height == op.other.width == 1 else (row, column)
            operand = rest.pop(0)[_at(op.other, image, channel, *pixel)]
        elif op.takes_argument:
            operand = rest.pop(0)[channel]
        value = T.Bind(_done(op, value, operand))
    T.buffer_store(out, value, [_at(layer.out, image, channel, row, column)])


def _done(op, value, operand):
    if op.kind in {"add", "shift"}:
        return value + operand
    if op.kind in {"mul", "scale"}:
        return value * operand
    return emit.activation(op, value, 1)


def _positions(layer, row, column, tap_row, tap_column):
    top, left, *_ = layer.padding
    y = row * layer.strides[0] + tap_row * layer.dilation[0] - top
    x = column * layer.strides[1] + tap_column * layer.dilation[1] - left
    inside = tirx.all(y >= 0, y < layer.data.height, x >= 0, x < layer.data.width)
    return y, x, inside


def _convolve(layer, data, weights, total, where):
    image, channel, row, column = where
    inputs = layer.data.channels // layer.groups
    group = tirx.floordiv(channel, layer.out.channels // layer.groups)
    height, width = layer.kernel
    with T.serial(0, inputs) as source, T.serial(0, height) as tap_row, T.serial(0, width) as tap_column:
        y, x, inside = _positions(layer, row, column, tap_row, tap_column)
        with T.If(inside), T.Then():
            number = data[_at(layer.data, image, group * inputs + source, y, x)]
            weight = weights[((channel * inputs + source) * height + tap_row) * width + tap_column]
            T.buffer_store(total, total[0] + number * weight, [0])


def _pool(layer, data, total, where):
    image, channel, row, column = where
    mean = layer.reduce == "mean"
    count = T.alloc_buffer((1,), "float32", scope="local")
    T.buffer_store(total, tirx.const(0.0 if mean else -3.4e38, "float32"), [0])
    T.buffer_store(count, tirx.const(0.0, "float32"), [0])
    for tap_row, tap_column in itertools.product(range(layer.kernel[0]), range(layer.kernel[1])):
        y, x, inside = _positions(layer, row, column, tap_row, tap_column)
        with T.If(inside), T.Then():
            number = data[_at(layer.data, image, channel, y, x)]
            T.buffer_store(total, total[0] + number if mean else tirx.max(total[0], number), [0])
            T.buffer_store(count, count[0] + tirx.const(1.0, "float32"), [0])
    if mean:
        area = tirx.const(float(layer.kernel[0] * layer.kernel[1]), "float32")
        number = area if layer.counts_padding else tirx.max(count[0], tirx.const(1.0, "float32"))
        T.buffer_store(total, total[0] / number, [0])


def _dense(layer):
    shape = (layer.rows, layer.outputs)
    arguments = [Argument("data", (layer.rows, layer.inputs)), Argument("weights", layer.weights_shape)]
    if layer.bias:
        arguments.append(Argument("bias", (layer.outputs,)))
    taking = [op for op in layer.epilogue if op.takes_argument]
    arguments += [
        Argument(f"operand{n}", (layer.outputs,) if op.kind in {"scale", "shift"} else shape)
        for n, op in enumerate(taking)
    ]

    def body(data, weights, *rest):
        *rest, out = rest
        bias = rest.pop(0) if layer.bias else None
        with T.serial(0, layer.rows) as row, T.serial(0, layer.outputs) as column:
            total = T.alloc_buffer((1,), "float32", scope="local")
            T.buffer_store(total, bias[column] if bias is not None else tirx.const(0.0, "float32"), [0])
            with T.serial(0, layer.inputs) as k:
                number = data[row * layer.inputs + k] * weights[column * layer.inputs + k]
                T.buffer_store(total, total[0] + number, [0])
            value, values = total[0], iter(rest)
            for op in layer.epilogue:
                operand = None
                if op.takes_argument:
                    line = 0 if op.kind in {"scale", "shift"} else row * layer.outputs
                    operand = next(values)[line + column]
                value = T.Bind(_done(op, value, operand))
            T.buffer_store(out, value, [row * layer.outputs + column])

    return emit.kernel([*arguments, Argument("out", shape)], body, {})
