from __future__ import annotations

import numpy as np

from toolchain.backends.cpu.graph.effects import Affine, Function, Operand
from toolchain.backends.cpu.graph.items import own_activation
from toolchain.backends.cpu.graph.plans import ImagePlan, RowPlan
from toolchain.backends.cpu.layers import Activation, Conv, Dense
from toolchain.backends.graph.values import Value

LANES = 8


def image(channels, height=4, width=5):
    return Value(shape=(1, channels, height, width), dtype="float32")


def constant(array):
    value = Value(shape=array.shape, dtype="float32", constant=object())
    value.array = array
    return value


def conv(weights, effects, groups=1, layer_groups=1):
    outputs, inputs, *kernel = weights.shape
    bare = Conv(
        Activation(1, inputs * groups, 4, 5, LANES),
        Activation(1, outputs, 4, 5, LANES),
        tuple(kernel),
        groups=layer_groups,
    )
    weights = constant(weights)
    return ImagePlan(image(inputs * groups), image(outputs), 0, weights, effects, bare=bare, groups=groups)


def line(scale, shift):
    return Affine(np.asarray(scale, np.float64), np.asarray(shift, np.float64))


def test_a_line_before_all_else_goes_into_weights_and_bias():
    weights, numbers = np.random.default_rng(0).random((3, 2, 1, 1), np.float32), np.array([2.0, 3.0, 4.0])
    plan = conv(weights, [line(1, numbers), line(numbers, 0), Function("clip", (0.0, 6.0)), line(numbers, 0)])
    layer = plan.layer(lambda value: own_activation(value, LANES))
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
    assert not plan.layer(lambda value: own_activation(value, LANES)).bias
    np.testing.assert_array_equal(plan.folded_weights(), np.full((3, 2, 1, 1), 2))


def test_layer_groupsare_filled_up_with_zeros():
    weights = np.arange(1, 9, dtype=np.float32).reshape(4, 2, 1, 1)
    plan = conv(weights, [], groups=2)
    expected = [[1, 2, 0, 0], [3, 4, 0, 0], [0, 0, 5, 6], [0, 0, 7, 8]]
    np.testing.assert_array_equal(plan.folded_weights()[:, :, 0, 0], expected)
    assert conv(weights, [], groups=2, layer_groups=2).folded_weights() is None


def test_weights_of_a_dense_layer_are_transposed():
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = Value(shape=(5, 3), dtype="float32")
    out = Value(shape=(5, 2), dtype="float32")
    plan = RowPlan(rows, out, 0, constant(weights), [line([1, 2], 0)], bare=Dense(5, 3, 2), is_transposed=True)
    np.testing.assert_array_equal(plan.folded_weights(), (weights * [1, 2]).T)
    assert (plan.channels, plan.axis_of(out)) == (2, 1)


def test_other_tensors_lie_where_they_are_told_to():
    other = image(3)
    plan = conv(np.ones((3, 2, 1, 1), np.float32), [Operand("add", other)])
    activation = Activation(1, 3, 4, 5, LANES, first=2, held=7)
    layer = plan.layer(lambda value: activation if value is other else own_activation(value, LANES))
    assert layer.epilogue[0].other == activation


def test_data_that_is_read_plain_stays_plain():
    bare = Conv(Activation(1, 3, 4, 5, 1), Activation(1, 8, 4, 5, LANES), (1, 1))
    plan = ImagePlan(image(3), image(8), 0, bare=bare)
    assert plan.layer(lambda value: own_activation(value, LANES)).data.lanes == 1
