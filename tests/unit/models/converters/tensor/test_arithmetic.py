"""Elementwise operators, against ONNX Runtime: element types, NaN, infinities, and where C and Python differ."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import one_node
from tests.support.one_node import One, agree, fed, refusal
from tests.support.operator_cases import Case, computed

FLOATS = ("float32", "float16", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 7.0], "float32")


def drawn(shape, dtype="float32", low=-5.0, high=5.0):
    values = np.random.default_rng(list(map(ord, dtype))).uniform(low, high, shape)
    return (np.abs(values) if dtype.startswith("u") else values).astype(dtype)


def test_remainders():
    agree(
        [fed("Mod", drawn((3, 4), kind) * 3, drawn((4,), kind, 1, 4), fmod=0) for kind in INTEGERS]
        + [fed("Mod", drawn((3, 4), kind) * 3, drawn((4,), kind, 1, 4), fmod=1) for kind in FLOATS]
        + [fed("Mod", drawn((5,), "int32"), np.array([3, -3, 2, -2, 7], "int32"), fmod=c) for c in (0, 1)]
        + [fed("Mod", ODD[:, None], ODD[3:] + 3, fmod=1)]
    )


@pytest.mark.parametrize(
    ("operator", "dtype", "expected"),
    [
        ("Div", "int64", [0, -3, 2, -(2**63)]),
        ("Div", "int8", [0, -3, 2, -128]),
        ("Mod", "int32", [1, -1, 1, 0]),
    ],
)
def test_integers_divided_by_zero_or_out_of_range(operator, dtype, expected):
    """x86's instruction would end the application."""
    dividends = np.array([1, 7, 7, np.iinfo(dtype).min], dtype)
    proto, values = one_node.model([fed(operator, dividends, np.array([0, -2, 3, -1], dtype))], 17)
    [quotients] = computed(Case(operator, proto, values, (), 0, 0))
    assert quotients.tolist() == expected


def test_a_constant_zero_that_divides_integers_is_refused():
    assert "constant 0" in refusal(One("Div", [np.array([4], "int32"), np.array([0], "int32")])).details


def test_integer_quotients():
    agree(
        [fed("Div", drawn((3, 4), kind) * 3, drawn((4,), kind, 1, 4)) for kind in INTEGERS]
        + [One("Div", [drawn((3, 4), kind) * 3, drawn((4,), kind, 1, 4)]) for kind in INTEGERS]
    )


def test_powers():
    bases = [drawn((6,), kind, 0.5, 4) for kind in ("float32", "float64", "int32", "int64")]
    few = np.array([0, 1, 2, 3, 2, 1])
    agree([fed("Pow", base, few.astype(other)) for base in bases for other in ("float32", "int32", "int64")])


def test_powers_by_a_constant():
    numbers = [np.array(value, "float32") for value in (0.5, 1.0, 2.0, 3.0, -1.0, 0.7)]
    agree([One("Pow", [drawn((2, 5), low=0.1), number]) for number in numbers])


def test_not_a_number_is_chosen_wherever_it_stands():
    agree(
        [
            fed(name, first.astype(kind), second.astype(kind))
            for name in ("Min", "Max")
            for kind in ("float32", "float64")
            for first, second in ((ODD, np.zeros(1)), (np.zeros(1), ODD), (ODD, ODD[::-1].copy()))
        ]
    )


def test_the_least_of_several_of_any_kind():
    agree(
        [
            fed(name, drawn((2, 3), kind), drawn((3,), kind, 0, 3), drawn((2, 1), kind, -3, 3))
            for name in ("Min", "Max")
            for kind in ("int32", "int64", "uint32", "uint64", "float16", "float32", "float64")
        ]
    )


def test_infinities():
    signs = [{"detect_positive": positive, "detect_negative": negative} for positive in (0, 1) for negative in (0, 1)]
    agree([fed("IsInf", ODD.astype(kind), **attributes) for kind in ("float32", "float64") for attributes in signs], 20)


def test_hyperbolic_functions():
    values = np.concatenate([ODD, np.linspace(-12, 12, 97), np.linspace(-0.6, 0.6, 41), [1e-6, -1e-4, 1e-3]])
    agree([fed(name, values.astype("float32")) for name in ("Sinh", "Cosh")], rtol=2e-6, atol=0)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(direction):
    kinds = ("uint8", "uint32", "uint64")
    agree([fed("BitShift", drawn((2, 4), k, 0, 100), np.array([0, 1, 3, 70], k), direction=direction) for k in kinds])


@pytest.mark.parametrize(("direction", "expected"), [("LEFT", [0, 8, 0, 0]), ("RIGHT", [-1, 2, -1, 0])])
def test_shifts_by_less_than_zero_or_more_than_the_width(direction, expected):
    values, amounts = np.array([-8, 4, -1, 4], "int8"), np.array([-1, 1, 8, 100], "int8")
    proto, inputs = one_node.model([fed("BitShift", values, amounts, direction=direction)], 28)
    [shifted] = computed(Case(direction, proto, inputs, (), 0, 0))
    assert shifted.tolist() == expected


def test_dropout_and_its_mask():
    ratio = np.array(0.3, "float32")
    agree([One("Dropout", [drawn((2, 3)), ratio], outputs=(True, True)), fed("Dropout", drawn((2, 3)))])


def test_sums_of_several():
    agree(
        [
            fed(name, drawn((2, 3), kind), drawn((3,), kind), drawn((2, 1), kind))
            for name in ("Sum", "Mean")
            for kind in ("float32", "float64")
        ]
    )


@pytest.mark.parametrize("kind", ["float32", "float64"])  # in half precision ONNX Runtime's of NaN is 0
def test_signs_of_odd_numbers(kind):
    agree([fed("Sign", ODD.astype(kind))])


@pytest.mark.parametrize("operator", ["Asin", "Acos", "Atan", "Asinh", "Acosh"])
def test_inverse_functions_in_half_precision(operator):
    low, high = (1.1, 5) if operator == "Acosh" else (-0.9, 0.9)
    agree([fed(operator, drawn((20,), kind, low, high)) for kind in ("float16", "float32")])


def test_hyperbolic_functions_up_to_their_largest_results():
    large = np.array([88.85, 89.0, 89.2, -88.95, -89.4, 10.0, 0.0], "float32")
    agree([fed("Sinh", large), fed("Cosh", large)])


def test_the_square_root_of_infinities_as_a_power():
    agree([One("Pow", [ODD, np.array(0.5, "float32")])])
