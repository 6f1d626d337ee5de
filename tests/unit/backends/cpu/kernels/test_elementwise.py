"""Element-wise steps and changes of layout against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support import cpu_kernels as kernels
from tests.support.cpu_kernels import AARCH64, ARMV7, MIDDLE, NARROW, WIDE, assembly, blocked, by_channel, random
from toolchain.backends.cpu.kernels import elementwise as template
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.layers import Activation, Map, PostOp

MACHINES = pytest.mark.parametrize("machine", [WIDE, MIDDLE, NARROW], ids=["wide", "middle", "narrow"])
SIZES = [(1, 1), (1, 3), (4, 4), (9, 13)]


def run(layer, machine, arrays, config=None):
    """Return the buffer that the kernel writes to; what it does not write to stays 77."""
    function = template.kernel(layer, machine, config or template.configs(layer, machine)[0][0])
    return kernels.run(function, arrays, np.full(layer.out.shape, 77, np.float32))


def check(layer, machine, arrays, expected, tolerance=1e-6):
    assert template.covers(layer)
    candidates = template.configs(layer, machine)
    for config, cost in {candidates[0], candidates[-1]}:
        assert cost > 0
        buffer = run(layer, machine, arrays, config)
        np.testing.assert_allclose(buffer, blocked(expected, layer.out), rtol=tolerance, atol=tolerance)


@MACHINES
@pytest.mark.parametrize("size", SIZES)
def test_steps(size, machine):
    lanes = machine.lanes
    data, other, gate = random((2, 40, *size)), random((2, 40, *size), 1), random((2, 40, 1, 1), 2)
    scale, shift = random((40,), 3), random((40,), 4)
    activation, pixel = Activation(2, 40, *size, lanes), Activation(2, 40, 1, 1, lanes)
    epilogue = (
        PostOp("scale"),
        PostOp("shift"),
        PostOp("add", other=activation),
        PostOp("mul", other=pixel),
        PostOp("leaky_relu", (0.1,)),
    )
    inputs = [
        blocked(data, activation),
        by_channel(scale, activation),
        by_channel(shift, activation),
        blocked(other, activation),
    ]
    sums = (data * scale[:, None, None] + shift[:, None, None] + other) * gate
    expected = np.where(sums < 0, np.float32(0.1) * sums, sums)
    check(Map(activation, activation, epilogue), machine, [*inputs, blocked(gate, pixel)], expected, 2e-6)


@MACHINES
@pytest.mark.parametrize("channels", [32, 21])
@pytest.mark.parametrize("size", SIZES)
def test_into_blocks(size, channels, machine):
    data = random((2, channels, *size))
    plain = Activation(2, channels, *size, 1)
    layer = Map(plain, replace(plain, lanes=machine.lanes), (PostOp("relu"),))
    check(layer, machine, [data], np.maximum(data, 0), 0)


@MACHINES
@pytest.mark.parametrize("channels", [32, 21])
@pytest.mark.parametrize("size", SIZES)
def test_out_of_blocks(size, channels, machine):
    data, shift = random((2, channels, *size)), random((channels,), 1)
    plain = Activation(2, channels, *size, 1)
    activation = replace(plain, lanes=machine.lanes)
    layer = Map(activation, plain, (PostOp("shift"),))
    inputs = [blocked(data, activation, 9.0), by_channel(shift, activation)]
    check(layer, machine, inputs, data + shift[:, None, None], 0)


@MACHINES
@pytest.mark.parametrize(("channels", "groups"), [(24, 3), (58, 2), (16, 4), (40, 8), (6, 2), (60, 3)])
def test_shuffle(channels, groups, machine):
    data = random((2, channels, 3, 5))
    activation = Activation(2, channels, 3, 5, machine.lanes)
    expected = data.reshape(2, groups, -1, 3, 5).swapaxes(1, 2).reshape(data.shape)
    check(
        Map(activation, activation, (PostOp("relu"),), groups),
        machine,
        [blocked(data, activation, 9.0)],
        np.maximum(expected, 0),
        0,
    )


@pytest.mark.parametrize("kind", ["copy", "shuffle", "into", "out"])
def test_parts(kind):
    data = random((1, 32, 5, 7))
    buffer_slice = Activation(1, 32, 5, 7, 16, first=1, held=4)
    plain = Activation(1, 32, 5, 7, 1, first=8, held=50)
    layer = {
        "copy": Map(replace(buffer_slice, first=2), buffer_slice),
        "shuffle": Map(replace(buffer_slice, first=2), buffer_slice, shuffle=2),
        "into": Map(plain, buffer_slice),
        "out": Map(buffer_slice, plain),
    }[kind]
    expected = data.reshape(1, 2, 16, 5, 7).swapaxes(1, 2).reshape(data.shape) if kind == "shuffle" else data
    buffer = run(layer, WIDE, [blocked(data, layer.data)])
    np.testing.assert_array_equal(kernels.unblocked(buffer, layer.out), expected)
    output = layer.out.blocks
    others = np.delete(buffer, np.arange(layer.out.first, layer.out.first + output), axis=1)
    assert others.shape[1] == layer.out.held - output
    assert (others == 77).all()


@pytest.mark.parametrize("kind", ["copy", "shuffle", "into", "out"])
def test_an_image_is_cut_for_the_cores(kind, monkeypatch):
    monkeypatch.setattr(emit, "_LEAST_SHARED", 0)
    data = random((1, 16, 41, 41))
    plain = Activation(1, 16, 41, 41, 1)
    activation = replace(plain, lanes=16)
    expected = data.reshape(1, 2, 8, 41, 41).swapaxes(1, 2).reshape(data.shape) if kind == "shuffle" else data
    source, out = {"into": (plain, activation), "out": (activation, plain)}.get(kind, (activation, activation))
    layer = Map(source, out, (PostOp("relu"),), 2 if kind == "shuffle" else 0)
    for cores in (2, 3):
        buffer = run(layer, replace(WIDE, cores=cores), [blocked(data, source)])
        np.testing.assert_array_equal(buffer, blocked(np.maximum(expected, 0), out))


@pytest.mark.parametrize(
    "layer",
    [
        Map(Activation(1, 8, 4, 4, 1), Activation(1, 8, 4, 4, 1)),
        Map(Activation(1, 8, 4, 4, 4), Activation(1, 8, 4, 4, 16)),
        Map(Activation(1, 8, 4, 4, 4), Activation(1, 8, 4, 2, 4)),
        Map(Activation(1, 8, 4, 4, 4, dtype="int8"), Activation(1, 8, 4, 4, 4)),
        Map(Activation(1, 8, 4, 4, 1), Activation(1, 8, 4, 4, 4), shuffle=2),
        Map(*[Activation(1, 8, 4, 4, 4)] * 2, (PostOp("add", other=Activation(1, 8, 4, 4, 1)),)),
    ],
    ids=["plain", "other blocks", "other size", "bytes", "shuffle of plain", "plain operand"],
)
def test_not_covered(layer):
    assert not template.covers(layer)


@pytest.mark.parametrize(
    ("target", "swap"), [(AARCH64, ("\ttrn1\t", "\tzip1\t")), (ARMV7, ("\tvtrn.32\t",))], ids=["aarch64", "armv7"]
)
def test_squares_are_transposed_in_registers(target, swap):
    plain = Activation(1, 32, 8, 8, 1)
    layer = Map(plain, replace(plain, lanes=4))
    code = assembly(template.kernel(layer, NARROW, template.configs(layer, NARROW)[0][0]), target)
    assert any(item in code for item in swap)
