"""Dot products of bytes, and the arguments of their kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from tests.support import cpu_bytes as int8
from tests.support.cpu_bytes import CORTEX_A76, MACHINES, conv
from tests.support.cpu_kernels import run
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.kernels.int8 import emit as int8_emit
from toolchain.backends.cpu.layers import Activation, Map, Pool, PostOp
from toolchain.backends.cpu.machine import machine as machine_of


def products(machine):
    """Return a kernel that adds products of the same four bytes of data to each lane."""
    byte = "int8" if machine.dot == "sdot" else "uint8"

    def body(data, weights, out):
        four = T.Bind(emit.splat(int8_emit.four_bytes(data, 0), machine.lanes))
        sums = emit.splat(1000, machine.lanes, "int32")
        actual = int8_emit.dot(machine, sums, four, weights[emit.ramp(0, 4 * machine.lanes)])
        T.buffer_store(out, actual, [emit.ramp(0, machine.lanes)])

    arguments = [Argument("data", (4,), byte), Argument("weights", (machine.lanes * 4,), "int8")]
    return emit.kernel([*arguments, Argument("out", (machine.lanes,), "int32")], body, {})


def wanted(data, weights):
    return 1000 + weights.reshape(-1, 4).astype(int) @ data.astype(int)


@pytest.mark.parametrize("width", MACHINES)
def test_unsigned_by_signed(width):
    int8.require_dot()
    machine = MACHINES[width]
    data, weights = np.array([255, 128, 0, 1], np.uint8), int8.random_bytes((machine.lanes * 4,), 1, "int8")
    actual = run(products(machine), [data, weights], np.zeros(machine.lanes, np.int32))
    assert (actual == wanted(data, weights)).all()


def test_signed_by_signed(tmp_path):
    machine = machine_of(CORTEX_A76)
    data, weights = np.array([-128, 127, 0, -1], np.int8), int8.random_bytes((16,), 1, "int8")
    actual = int8.emulated(products(machine), [data, weights], np.zeros(4, np.int32), tmp_path)
    assert (actual == wanted(data, weights)).all()


def test_loaded_numbers_are_as_they_are_and_bytes_become_numbers():
    def body(data, numbers, out):
        total = int8_emit.load_float32(data, 0, 8) + int8_emit.load_float32(numbers, 0, 8)
        T.buffer_store(out, total, [tirx.Ramp(0, 1, 8)])

    kernel = emit.kernel([Argument("a", (8,), "int8"), Argument("b", (8,)), Argument("c", (8,))], body, {})
    data, numbers = int8.random_bytes((8,), 2, "int8"), np.linspace(0, 1, 8, dtype=np.float32)
    assert (run(kernel, [data, numbers], np.zeros(8, np.float32)) == data + numbers).all()


def test_arguments_of_layers():
    def listed(layer):
        return [(item.name, item.shape, item.dtype) for item in int8_emit.arguments(layer)]

    layer = conv((1, 20, 4, 5), 24, (3, 3), 16, padding=(1,) * 4, epilogue=(PostOp("add"), PostOp("relu")))
    assert listed(layer) == [
        ("data", (1, 2, 4, 5, 16), "uint8"),
        ("weights", (24, 20, 3, 3), "int8"),
        ("sums", (2, 16), "int32"),
        ("scales", (2, 16), "float32"),
        ("parameters", (8,), "float32"),
        ("operand0", (1, 2, 4, 5, 16), "uint8"),
        ("out", (1, 2, 4, 5, 16), "uint8"),
    ]
    plain = Activation(1, 20, 4, 5, 1)
    assert listed(Map(plain, layer.data)) == [
        ("data", (1, 20, 4, 5), "float32"),
        ("parameters", (6,), "float32"),
        ("out", (1, 2, 4, 5, 16), "uint8"),
    ]
    pool = Pool(layer.data, replace(layer.data, height=1, width=1), "max", (4, 5))
    assert [name for name, *_ in listed(pool)] == ["data", "out"]


def test_packed_weights_take_the_place_of_weights():
    layer = conv((1, 20, 4, 5), 24, (3, 3), 16)
    packed = Argument("weights", (7,), "int8")
    assert int8_emit.arguments(layer, packed)[1] is packed
