"""Pooling of bytes against numpy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cpu_bytes import MACHINES, WIDE, check
from toolchain.backends.cpu.kernels.int8 import pool as template
from toolchain.backends.cpu.layers import Activation, Pool, PostOp


def pool(reduce, data, kernel, lanes=16, **options):
    layer = Pool(Activation(*data, lanes, dtype="uint8"), Activation(1, 1, 1, 1, 1), reduce, kernel, **options)
    height, width = (
        (extent + sum(layer.padding[axis::2]) - layer.kernel[axis]) // layer.strides[axis] + 1
        for axis, extent in enumerate(data[2:])
    )
    return replace(layer, out=replace(layer.data, height=height, width=width))


MAXIMA = {
    "3x3 down by 2": ((1, 20, 14, 13), (3, 3), {"strides": (2, 2), "padding": (1,) * 4}),
    "2x2": ((2, 16, 6, 8), (2, 2), {"strides": (2, 2)}),
    "windows that overlap": ((1, 16, 5, 7), (3, 3), {"padding": (1,) * 4}),
    "one row": ((1, 33, 1, 9), (1, 3), {"padding": (0, 1, 0, 1)}),
    "one pixel": ((1, 16, 1, 1), (3, 3), {"padding": (1,) * 4}),
    "padding at the end": ((1, 16, 6, 6), (3, 3), {"strides": (2, 2), "padding": (0, 0, 1, 1)}),
}
MEANS = {
    "global": ((2, 40, 7, 5), (7, 5), {}),
    "2x2": ((1, 16, 6, 8), (2, 2), {"strides": (2, 2), "epilogue": (PostOp("relu"),)}),
    "3x2": ((1, 20, 7, 7), (3, 2), {"strides": (2, 1)}),
    "padding": ((1, 20, 7, 5), (3, 3), {"padding": (1,) * 4}),
    "padding that counts": ((1, 20, 7, 5), (3, 3), {"padding": (1,) * 4, "counts_padding": True}),
    "padding down by 2": ((1, 16, 8, 6), (3, 3), {"padding": (0, 1, 1, 1), "strides": (2, 2), "counts_padding": True}),
    "one pixel": ((1, 16, 1, 1), (3, 3), {"padding": (1,) * 4}),
}


@pytest.mark.parametrize("width", MACHINES)
@pytest.mark.parametrize("case", MAXIMA)
def test_maximum(case, width):
    data, kernel, options = MAXIMA[case]
    check(template, pool("max", data, kernel, MACHINES[width].lanes, **options), MACHINES[width])


@pytest.mark.parametrize("width", MACHINES)
@pytest.mark.parametrize("case", MEANS)
def test_mean(case, width):
    data, kernel, options = MEANS[case]
    check(template, pool("mean", data, kernel, MACHINES[width].lanes, **options), MACHINES[width])


def test_mean_as_a_number():
    layer = pool("mean", (1, 16, 4, 4), (4, 4))
    check(template, replace(layer, out=replace(layer.out, dtype="float32")), WIDE)


def test_parts_of_buffers():
    layer = pool("max", (1, 32, 5, 5), (3, 3), padding=(1,) * 4)
    buffer_slice = replace(layer.out, first=1, held=4)
    check(template, replace(layer, data=replace(layer.data, first=2, held=5), out=buffer_slice), WIDE)


def test_what_is_not_covered():
    largest, mean = pool("max", (1, 16, 5, 5), (3, 3)), pool("mean", (1, 16, 5, 5), (3, 3))
    assert template.covers(largest)
    assert not template.covers(replace(largest, epilogue=(PostOp("relu"),)))
    assert not template.covers(replace(largest, out=replace(largest.out, dtype="float32")))
    assert not template.covers(replace(largest, data=replace(largest.data, lanes=1)))
    assert template.covers(mean)
    assert not template.covers(replace(mean, kernel=(300, 300)))


def test_cost_counts_vectors():
    (_, small), (_, tall) = (template.configs(pool("max", (1, 16, h, 8), (1, 1)), WIDE)[0] for h in (4, 8))
    assert tall == 2 * small
