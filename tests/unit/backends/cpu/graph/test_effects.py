from __future__ import annotations

import numpy as np
import pytest

from tests.support.relax_nets import net, prepared
from toolchain.backends.cpu.graph import effects
from toolchain.backends.cpu.graph.effects import Affine, Function, Operand
from toolchain.backends.graph import patterns, values

SHAPE = (1, 3, 2, 2)
NUMBERS = np.array([2.0, 3.0, 4.0], np.float32)
GREATEST = float(np.finfo(np.float32).max)


def effects_of(nodes, weights=None, axis=1, shape=SHAPE):
    """Return what the last operation does to what it reads first, or to the result before it."""
    module = prepared(net(nodes, shape, weights))
    [block] = module["main"].body.blocks
    actual = values.read(block, module)
    patterns.replace(actual)
    last = actual.operations[-1]
    main = next(value for value in last.inputs if value.constant is None)
    return effects.effects(last, main, axis)


def affine(scale, shift):
    return Affine(np.asarray(scale, np.float64), np.asarray(shift, np.float64))


@pytest.mark.parametrize(
    ("operator", "scale", "shift"),
    [
        ("Add x w", 1, NUMBERS),
        ("Mul w x", NUMBERS, 0),
        ("Sub x w", 1, -NUMBERS),
        ("Sub w x", -1, NUMBERS),
        ("Div x w", 1 / NUMBERS.astype(np.float64), 0),
    ],
)
@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1)])
def test_arithmetic_with_a_number_for_each_channel(operator, scale, shift, shape):
    kind, *read = operator.split()
    [effect] = effects_of([(kind, " ".join(read), "y")], {"w": NUMBERS.reshape(shape)})
    np.testing.assert_array_equal(effect.scale, scale)
    np.testing.assert_array_equal(effect.shift, shift)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_arithmetic_with_one_number_for_all(shape):
    [effect] = effects_of([("Mul", "x w", "y")], {"w": np.full(shape, 2.5, np.float32)})
    assert effect.scale == 2.5


@pytest.mark.parametrize(
    ("operator", "weights"),
    [
        ("Add x w", np.ones((2, 2), np.float32)),  # differs within a channel
        ("Div w x", NUMBERS.reshape(3, 1, 1)),
        ("Div x w", np.zeros((3, 1, 1), np.float32)),
        ("Max x w", NUMBERS.reshape(3, 1, 1)),
    ],
)
def test_what_no_step_can_express(operator, weights):
    kind, *read = operator.split()
    assert effects_of([(kind, " ".join(read), "y")], {"w": weights}) is None


def test_an_operation_with_a_larger_result_is_no_step():
    assert effects_of([("Add", "x w", "y")], {"w": np.ones((2, 3, 1, 1), np.float32)}) is None


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (("Relu", "x", "y"), Function("clip", (0.0, GREATEST))),
        (("Sigmoid", "x", "y"), Function("sigmoid")),
        (("Tanh", "x", "y"), Function("tanh")),
        (("LeakyRelu", "x", "y", {"alpha": 0.25}), Function("leaky_relu", (0.25,))),
    ],
)
def test_functions(node, expected):
    assert effects_of([node]) == [expected]


def test_one_slope_for_all_channels():
    assert effects_of([("PRelu", "x w", "y")], {"w": np.full((1, 1, 1), 0.25, np.float32)}) == [
        Function("leaky_relu", (0.25,))
    ]
    assert effects_of([("PRelu", "x w", "y")], {"w": NUMBERS.reshape(3, 1, 1)}) is None


def test_hard_swish_may_have_a_factor():
    weights = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    function, factor = effects_of([("Add", "x three", "a"), ("Clip", "a zero six", "b"), ("Mul", "b x", "y")], weights)
    assert function == Function("hard_swish")
    assert factor.scale == pytest.approx(6)


def test_tensors_of_the_same_shape_and_single_pixels():
    [first, second] = effects_of([("Relu", "x", "a"), ("Relu", "a", "b"), ("Sum", "x a b", "y")])
    assert isinstance(first, Operand)
    assert (first.kind, second.kind) == ("add", "add")
    [gate] = effects_of([("GlobalMaxPool", "x", "a"), ("Relu", "a", "b"), ("Mul", "x b", "y")])
    assert (gate.kind, gate.value.shape) == ("mul", (1, 3, 1, 1))


def test_the_last_axis_of_rows_holds_the_channels():
    [effect] = effects_of([("Add", "x w", "y")], {"w": NUMBERS}, axis=1, shape=(5, 3))
    np.testing.assert_array_equal(effect.shift, NUMBERS)


def test_lines_become_one():
    [line] = effects.merge([affine(2, NUMBERS), affine(NUMBERS, 1), affine(1, 0.5)])
    x = np.array([0.3, -7.0, 11.0])
    np.testing.assert_allclose(x * line.scale + line.shift, (x * 2 + NUMBERS) * NUMBERS + 1.5, rtol=1e-15)


@pytest.mark.parametrize("first", [(0.0, GREATEST), (-1.0, 2.0), (3.0, 4.0)])
@pytest.mark.parametrize("second", [(-GREATEST, 6.0), (0.5, 1.0), (5.0, 9.0)])
def test_limits_become_one(first, second):
    [limits] = effects.merge([Function("clip", first), Function("clip", second)])
    x = np.linspace(-10, 10, 201)
    np.testing.assert_array_equal(np.clip(x, *limits.values), np.clip(np.clip(x, *first), *second))


def test_what_does_nothing_is_left_out():
    idle = [affine(2, 0), affine(0.5, 0), Function("clip", (-GREATEST, GREATEST))]
    assert effects.merge(idle) == []


def test_steps():
    value = values.Value(shape=SHAPE, dtype="float32")
    built = [affine(NUMBERS, 1), Function("clip", (0.0, GREATEST)), Operand("add", value), affine(1, NUMBERS)]
    post_ops = effects.epilogue(built, 3)
    assert [item.op.kind for item in post_ops] == ["scale", "shift", "relu", "add", "shift"]
    np.testing.assert_array_equal(post_ops[1].numbers, [1, 1, 1])
    np.testing.assert_array_equal(post_ops[4].numbers, NUMBERS)
    assert post_ops[3].value is value


def test_limits_other_than_those_of_relu_stay():
    [post_ops] = effects.epilogue([Function("clip", (0.0, 6.0))], 3)
    assert (post_ops.op.kind, post_ops.op.values) == ("clip", (0.0, 6.0))
