from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toolchain.backends.vta.codegen.recorder import Rows
from toolchain.backends.vta.codegen.transfers import Affine, Axis, Clip, Transfer
from toolchain.errors import BuildError

POISON = -1


def loaded(tensor: np.ndarray, rows: list[Rows], elements: int) -> np.ndarray:
    """Return what SRAM holds after the loads, as the machine does them."""
    flat, sram = tensor.ravel(), np.full(elements, POISON)
    for transfer in rows:
        (top, bottom), (left, right) = transfer.y_pad, transfer.x_pad
        tile = np.zeros((top + transfer.y_size + bottom, left + transfer.x_size + right), int)
        for row in range(transfer.y_size):
            start = transfer.dram + row * transfer.x_stride
            assert 0 <= start <= start + transfer.x_size <= flat.size
            tile[top + row, left : left + transfer.x_size] = flat[start : start + transfer.x_size]
        sram[transfer.elements] = tile.ravel()
    return sram


def windows(shape, extents, starts, row_step=1):
    """Describe a window of a (blocks, rows, columns) tensor that starts at some block, row and column."""
    strides = (shape[1] * shape[2], shape[2], 1)
    steps = (extents[1] * extents[2], extents[2], 1)
    axes = []
    offset = Affine(0, ())
    for axis, (size, extent, start, stride, advance) in enumerate(
        zip(shape, extents, starts, strides, steps, strict=True)
    ):
        step = row_step if axis == 1 else 1
        outside = start < 0 or start + (extent - 1) * step >= size
        clip = Clip(Affine(start, ()), step, size) if outside else None
        axes.append(Axis(extent, advance if extent > 1 else 0, step * stride, clip))
        offset = offset.plus(Affine(start * stride, ()))
    return Transfer.of(offset, axes, int(np.prod(extents)))


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(0, 2), st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
def test_a_window_with_its_padding(shape, extents, block, row, column, step):
    assume(block + extents[0] <= shape[0])
    tensor = np.arange(1, np.prod(shape) + 1).reshape(shape)
    rows = list(windows(shape, extents, (block, row, column), step).rows(0, ()))
    room = int(np.prod(extents))
    around = np.pad(tensor, ((0, 0), (40, 40), (40, 40)))
    expected = around[
        block : block + extents[0],
        40 + row : 40 + row + extents[1] * step : step,
        40 + column : 40 + column + extents[2],
    ]
    np.testing.assert_array_equal(loaded(tensor, rows, room + 1)[:room], expected.ravel())


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(0, 2), st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3), st.integers(1, 9))
def test_a_window_between_padding_of_another_byte(shape, extents, block, row, column, step, limit):
    assume(block + extents[0] <= shape[0])
    tensor = np.arange(1, np.prod(shape) + 1).reshape(shape)
    window, room = windows(shape, extents, (block, row, column), step), int(np.prod(extents))
    inside = loaded(tensor, list(window.interior(0, ())), room)
    around = loaded(np.full(limit, 77), list(window.edges(0, (), limit)), room)
    assert not np.any((inside != POISON) & (around != POISON)), "each element is loaded once"
    wide = np.pad(tensor, ((0, 0), (40, 40), (40, 40)), constant_values=77)
    expected = wide[
        block : block + extents[0],
        40 + row : 40 + row + extents[1] * step : step,
        40 + column : 40 + column + extents[2],
    ]
    np.testing.assert_array_equal(np.where(inside == POISON, around, inside), expected.ravel())


def test_whole_rows_between_padding_are_one_rectangle():
    window = windows((2, 5, 6), (2, 7, 6), (0, -1, 0))
    assert list(window.interior(3, ())) == [Rows(9 + 42 * block, 30 * block, 5, 6, 6) for block in range(2)]
    assert list(window.edges(3, (), 64)) == [Rows(first, 0, 1, 6, 6) for first in (3, 39, 45, 81)]


def test_as_few_instructions_as_possible():
    contiguous = list(windows((4, 5, 6), (4, 5, 6), (0, 0, 0)).rows(7, ()))
    assert contiguous == [Rows(7, 0, 1, 120, 1)]
    blocks = list(windows((4, 5, 6), (4, 2, 6), (0, 1, 0)).rows(0, ()))
    assert blocks == [Rows(0, 6, 4, 12, 30)]
    padded = list(windows((4, 5, 6), (4, 7, 8), (0, -1, -1)).rows(0, ()))
    assert padded == [Rows(56 * block, 30 * block, 5, 6, 6, (1, 1), (1, 1)) for block in range(4)]


def test_rows_between_which_some_are_left_out():
    assert list(windows((1, 8, 3), (1, 4, 3), (0, 1, 0), 2).rows(0, ())) == [Rows(0, 3, 4, 3, 6)]


def test_the_loops_around():
    start = Affine(-1, (4,))
    transfer = Transfer.of(start.times(6), [Axis(6, 6, 6, Clip(start, 1, 8)), Axis(6, 1, 1)], 36)
    assert list(transfer.rows(0, (0,))) == [Rows(0, 0, 5, 6, 6, (1, 0))]
    assert list(transfer.rows(36, (1,))) == [Rows(36, 18, 5, 6, 6, (0, 1))]
    assert transfer.clipped


def test_nothing_but_padding_is_loaded_as_zeros():
    rows = list(windows((1, 2, 2), (1, 4, 5), (0, -4, 0)).rows(100, ()))
    assert [row.sram for row in rows] == [100, 115]
    assert all((row.y_size, row.x_size, row.dram) == (1, 1, 0) for row in rows)
    assert rows[-1].elements.stop == 121


def test_too_much_padding():
    with pytest.raises(BuildError, match="15 zeros"):
        list(windows((1, 4, 4), (1, 20, 4), (0, -16, 0)).rows(0, ()))


def test_padding_along_channels():
    with pytest.raises(BuildError, match="more than rows and columns"):
        windows((2, 4, 4), (2, 4, 4), (-1, 1, 1))


def test_bounds():
    assert Affine(3, (2, -5)).bounds((4, 3)) == (-7, 9)
    assert Affine(3, (2, -5)).at((3, 2)) == -1
