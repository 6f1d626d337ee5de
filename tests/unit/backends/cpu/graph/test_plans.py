from __future__ import annotations

import numpy as np
import pytest

from toolchain.backends.cpu.graph.effects import Affine, Function, Operand
from toolchain.backends.cpu.graph.plans import Carried, Flat, ImagePlan, Join, Plain, RowPlan, Slice, homes, whole
from toolchain.backends.cpu.layers import Activation, Conv, Dense, Map
from toolchain.backends.graph.values import Operation, Value

LANES = 8


def image(channels, height=4, width=5):
    return Value(shape=(1, channels, height, width), dtype="float32")


def constant(array):
    value = Value(shape=array.shape, dtype="float32", constant=object())
    value.array = array
    return value


def made(out, data=None):
    data = data or image(3)
    return ImagePlan(data, out, 0, bare=Map(whole(data, LANES), whole(out, LANES)))


def joined(*values, plain=False):
    height, width = values[0].image[2:]
    out = image(sum(value.image[1] for value in values), height, width)
    return Join(Operation("concat", values, (out,)), 0, plain)


def test_alone_in_a_buffer():
    out = image(12)
    assert homes([made(out)], LANES) == {out: (out, Activation(1, 12, 4, 5, LANES))}


def test_parts_of_a_concatenation():
    a, b, c = image(8), image(16), image(5)
    join = joined(a, b, c)
    found = homes([made(a), made(b), made(c), join], LANES)
    assert [found[value][0] for value in (a, b, c)] == [join.out] * 3
    assert [(found[value][1].first, found[value][1].held) for value in (a, b, c)] == [(0, 4), (1, 4), (3, 4)]
    assert found[join.out] == (join.out, whole(join.out, LANES))


def test_concatenations_in_each_other():
    a, b, c = image(8), image(8), image(8)
    inner = joined(a, b)
    outer = joined(c, inner.out)
    found = homes([made(a), made(b), inner, made(c), outer], LANES)
    assert {found[value][0] for value in (a, b, c, inner.out)} == {outer.out}
    assert [found[value][1].first for value in (c, a, b, inner.out)] == [0, 1, 2, 1]
    assert found[inner.out][1].held == 3


def test_a_tensor_is_in_one_place_only():
    a, b = image(8), image(8)
    first, second = joined(a, b), joined(b, a)
    found = homes([made(a), made(b), first, second], LANES)
    assert {found[value][0] for value in (a, b)} == {first.out}
    assert found[second.out][0] is second.out


def test_twice_in_the_same_concatenation():
    a = image(8)
    join = joined(a, a)
    assert homes([made(a), join], LANES)[a][1].first == 0


@pytest.mark.parametrize("plain", [True, False])
def test_what_begins_within_a_block_has_a_buffer_of_its_own(plain):
    a, b = image(4), image(8)
    join = joined(a, b, plain=plain)
    found = homes([made(a), made(b), join], LANES)
    assert found[b][0] is b
    assert (join.out in found) is not plain


def test_slices_are_views():
    source, low, high = image(24), image(8), image(10)
    found = homes([made(source), Slice(source, low, 0, 0), Slice(source, high, 8, 0)], LANES)
    assert found[low] == (source, Activation(1, 8, 4, 5, LANES, 0, 3))
    assert found[high] == (source, Activation(1, 10, 4, 5, LANES, 1, 3))


def test_a_slice_of_a_part_and_a_slice_in_a_concatenation():
    a, b, low = image(16), image(8), image(8)
    join = joined(b, a)
    again = joined(b, low)
    found = homes([made(a), made(b), join, Slice(a, low, 8, 0), again], LANES)
    assert found[low] == (join.out, Activation(1, 8, 4, 5, LANES, 2, 3))
    assert found[again.out][0] is again.out


def test_what_relax_computes_in_blocks_has_buffers_of_its_own():
    a, b = image(8), image(8)
    carried = Carried(Operation("exp", (a,), (b,)), 0)
    join = joined(a, b)
    found = homes([made(a), carried, join], LANES)
    assert found[a][0] is a
    assert found[b][0] is b


def test_plain_results_have_no_home():
    rows = Value(shape=(1, 5), dtype="float32")
    items = [
        RowPlan(rows, rows, 0, bare=Dense(1, 3, 5)),
        Flat(image(5), rows, 0),
        Plain(Operation("nn.softmax", (), (rows,)), 0),
    ]
    assert homes(items, LANES) == {}


def conv(weights, effects, groups=1, taken=1):
    outputs, inputs, *kernel = weights.shape
    bare = Conv(
        Activation(1, inputs * groups, 4, 5, LANES), Activation(1, outputs, 4, 5, LANES), tuple(kernel), groups=taken
    )
    weights = constant(weights)
    return ImagePlan(image(inputs * groups), image(outputs), 0, weights, effects, bare=bare, groups=groups)


def line(scale, shift):
    return Affine(np.asarray(scale, np.float64), np.asarray(shift, np.float64))


def test_a_line_before_all_else_goes_into_weights_and_bias():
    weights, numbers = np.random.default_rng(0).random((3, 2, 1, 1), np.float32), np.array([2.0, 3.0, 4.0])
    plan = conv(weights, [line(1, numbers), line(numbers, 0), Function("clip", (0.0, 6.0)), line(numbers, 0)])
    layer = plan.layer(lambda value: whole(value, LANES))
    assert layer.bias
    assert [op.kind for op in layer.epilogue] == ["clip", "scale"]
    np.testing.assert_allclose(plan.folded_weights(), weights * numbers.reshape(3, 1, 1, 1), rtol=1e-6)
    np.testing.assert_array_equal(plan.bias(), numbers**2)


def test_weights_without_a_factor_stay_as_they_are():
    plan = conv(np.ones((3, 2, 1, 1), np.float32), [line(1, 5)])
    assert plan.folded_weights() is None
    np.testing.assert_array_equal(plan.bias(), [5, 5, 5])


def test_no_bias_without_a_shift():
    plan = conv(np.ones((3, 2, 1, 1), np.float32), [line(2, 0)])
    assert not plan.layer(lambda value: whole(value, LANES)).bias
    np.testing.assert_array_equal(plan.folded_weights(), np.full((3, 2, 1, 1), 2))


def test_groups_are_filled_up_with_zeros():
    weights = np.arange(1, 9, dtype=np.float32).reshape(4, 2, 1, 1)
    plan = conv(weights, [], groups=2)
    expected = [[1, 2, 0, 0], [3, 4, 0, 0], [0, 0, 5, 6], [0, 0, 7, 8]]
    np.testing.assert_array_equal(plan.folded_weights()[:, :, 0, 0], expected)
    assert conv(weights, [], groups=2, taken=2).folded_weights() is None


def test_weights_of_a_dense_layer_are_turned():
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = Value(shape=(5, 3), dtype="float32")
    out = Value(shape=(5, 2), dtype="float32")
    plan = RowPlan(rows, out, 0, constant(weights), [line([1, 2], 0)], bare=Dense(5, 3, 2), is_turned=True)
    np.testing.assert_array_equal(plan.folded_weights(), (weights * [1, 2]).T)
    assert (plan.channels, plan.axis) == (2, 1)


def test_other_tensors_lie_where_they_are_told_to():
    other = image(3)
    plan = conv(np.ones((3, 2, 1, 1), np.float32), [Operand("add", other)])
    place = Activation(1, 3, 4, 5, LANES, first=2, held=7)
    layer = plan.layer(lambda value: place if value is other else whole(value, LANES))
    assert layer.epilogue[0].other == place


def test_data_that_is_read_plain_stays_plain():
    bare = Conv(Activation(1, 3, 4, 5, 1), Activation(1, 8, 4, 5, LANES), (1, 1))
    plan = ImagePlan(image(3), image(8), 0, bare=bare)
    assert plan.layer(lambda value: whole(value, LANES)).data.lanes == 1
