"""Which tile is the cheapest: the one that loads the least, as long as there is work for all cores."""

from __future__ import annotations

import pytest
from tvm import te, topi

from tests.unit.backends.mali.test_layers import convolution
from toolchain.backends.mali import layers, tiles
from toolchain.backends.mali.gpu import Means
from toolchain.backends.mali.tiles import Loading

NOBODY_S = Means()


def plans(function, means=NOBODY_S):
    return tiles.plans(layers.layer_of(function), means)


def cheapest(function, means=NOBODY_S) -> tiles.Plan:
    return plans(function, means)[0]


@pytest.mark.parametrize(
    ("size", "rows", "columns"), [(28, 1, 7), (56, 1, 7), (14, 1, 7), (7, 1, 7), (5, 1, 5), (20, 1, 5)]
)
def test_pixels_are_streamed_where_they_are_all_within(size, rows, columns):
    """Up to seven of them, in a tile that does not reach over the edge."""
    plan = cheapest(convolution(size, 64, 1024, 1))
    assert plan.loading is Loading.STREAMED
    assert plan.rows * plan.columns == rows * columns
    assert size % plan.rows == 0
    assert size % plan.columns == 0


@pytest.mark.parametrize("size", [27, 13, 73, 31])
def test_a_tile_that_reaches_over_the_edge_has_five_pixels_at_most(size):
    """They ask first whether they are within: eight and six of SqueezeNet's spilled, and seven of Inception's."""
    tiles_of = [plan for plan in plans(convolution(size, 64, 1024, 1)) if plan.loading is Loading.STREAMED]
    over = [plan for plan in tiles_of if size % plan.rows or size % plan.columns]
    assert max(plan.rows * plan.columns for plan in over) == 5


def test_pixels_that_are_padded_share_the_row_of_a_window():
    """What asks for each pixel whether it is within takes registers of its own: streamed, it spills."""
    ordered = plans(convolution(28, 64, 256))
    assert ordered[0].loading is Loading.SHARED
    assert ordered[0].unrolls_window
    assert all(plan.loading is not Loading.STREAMED for plan in ordered)


@pytest.mark.parametrize(("window", "result", "pixels"), [(3, 112, 4), (3, 149, 4), (7, 112, 3)])
def test_a_window_that_is_walked_through_takes_registers_of_its_own(window, result, pixels):
    """Fewer are left where it is wide."""
    size = 2 * (result - 1) + window
    x, w = te.placeholder((1, size, size, 4), name="x"), te.placeholder((window, window, 4, 64), name="w")
    ordered = plans(te.create_prim_func([x, w, topi.nn.conv2d_nhwc(x, w, 2, 0, 1)]))
    assert max(plan.rows * plan.columns for plan in ordered if plan.loading is Loading.STREAMED) == pixels


def test_rows_that_lie_far_apart_are_fewer():
    """Each of them is 12 KiB."""
    a, b = te.placeholder((128, 3072), name="a"), te.placeholder((3072, 768), name="b")
    plan = cheapest(te.create_prim_func([a, b, topi.nn.matmul(a, b)]))
    assert (plan.loading, plan.rows, plan.columns) == (Loading.STREAMED, 1, 4)


def test_products_of_pairs_of_matrices_share_nothing():
    a, b = te.placeholder((36, 64, 32), name="a"), te.placeholder((36, 32, 64), name="b")
    ordered = plans(te.create_prim_func([a, b, topi.nn.batch_matmul(a, b, transpose_b=False)]))
    assert ordered[0].loading is Loading.STREAMED
    assert {plan.rows for plan in ordered} == {1}


def test_strides_count():
    """For results of the same size: with steps of two, neighbours have less of their window in common."""
    plain, strided = convolution(56, 64, 256), convolution(112, 64, 256, 3, 2)
    assert plans(plain) != plans(strided)


def test_loads_from_memory_come_last():
    ordered = plans(convolution())
    ways = [plan.loading is Loading.DIRECT for plan in ordered]
    assert ways == sorted(ways)
    assert any(ways)


def test_a_layer_with_few_results_has_small_tiles():
    plan = cheapest(convolution(4, 64, 16, 1))
    assert (plan.rows, plan.columns) == (1, 1)


def test_a_product_of_a_vector_has_one_pixel():
    x, w = te.placeholder((1, 64), name="x"), te.placeholder((64, 4000), name="w")
    ordered = plans(te.create_prim_func([x, w, topi.matmul(x, w)]))
    assert {(plan.rows, plan.columns) for plan in ordered} == {(1, 1)}


def test_more_cores_get_smaller_tiles():
    """What four cores share in large tiles leaves some of twelve without work."""
    layer = convolution(14, 64, 128, 1)
    few, many = cheapest(layer, Means(cores=4)), cheapest(layer, Means(cores=12))
    assert few.rows * few.columns > many.rows * many.columns
