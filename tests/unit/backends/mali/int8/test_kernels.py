"""What kernels on bytes multiply with, and how bytes are put into int32 and taken out again."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from toolchain.backends.graph.quantization import Grid
from toolchain.backends.mali.int8 import kernels
from toolchain.backends.mali.int8.layers import Layer

CPU = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def layer(numbers, zero=0, **options):
    scales = np.ones(len(numbers), np.float32)
    return Layer(None, (1, numbers.shape[1], 6, 6), Grid(1.0, zero), numbers, scales, **options)


def test_weights_are_four_channels_to_an_int32():
    numbers = np.arange(-30, 30, dtype=np.int16).reshape(2, 5, 3, 2)
    packed = kernels.pack_weights(layer(numbers))
    assert packed.shape == (3, 2, 2, 4)  # outputs are filled up with zeros, too
    assert not packed[..., 2:].any()
    for (row, column, group, output), four in np.ndenumerate(packed[..., :2]):
        expected_bytes = numbers[output, 4 * group : 4 * group + 4, row, column]
        np.testing.assert_array_equal(
            np.array([four]).view(np.int8), [*expected_bytes, *[0] * (4 - len(expected_bytes))]
        )


@pytest.mark.parametrize("kind", [np.int16, np.float32])
def test_weights_by_channel_stay_by_channel(kind):
    numbers = np.arange(45, dtype=kind).reshape(5, 1, 3, 3)
    packed = kernels.pack_weights(layer(numbers, by_channel=True))
    assert (packed.shape, packed.dtype) == ((3, 3, 8), np.int32 if kind is np.int16 else np.float32)
    np.testing.assert_array_equal(packed[..., :5], numbers[:, 0].transpose(1, 2, 0))


def test_what_a_zero_adds_is_of_whole_fours():
    numbers = np.arange(-30, 30, dtype=np.int16).reshape(2, 5, 3, 2)
    np.testing.assert_array_equal(kernels.zero_sums(layer(numbers, -7)), [-7 * -465, -7 * 435, 0, 0])


@pytest.mark.parametrize(("kind", "channels"), [("int8", 8), ("uint8", 8), ("int8", 5), ("uint8", 3)])
def test_bytes_are_what_they_were_when_they_are_taken_out(kind, channels):
    shape = (2, channels, 3, 4)
    data = te.placeholder(shape, kind, name="data")
    packed = kernels.pack(data, shape)
    function = te.create_prim_func([data, kernels.unpack(packed, shape, kind)])
    bytes_ = np.random.default_rng(0).integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
    result = tvm.runtime.tensor(np.zeros(shape, kind))
    tvm.compile(function, target=CPU)(tvm.runtime.tensor(bytes_), result)
    np.testing.assert_array_equal(result.numpy(), bytes_)
