"""Reductions, against ONNX Runtime: element types, no axes at all, axes that count from the end."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree, fed

REDUCTIONS = ("Sum", "Prod", "Max", "Min", "L1", "SumSquare", "Mean", "L2", "LogSum", "LogSumExp")
DATA = np.random.default_rng(0).uniform(0.5, 3, (2, 3, 4))


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64", "float16"])
def test_some_axes(kind):
    data = (DATA * (4 if kind.startswith("int") else 1)).astype(kind)
    names = [name for name in REDUCTIONS if not (kind.startswith("int") and name.startswith("LogSum"))]
    agree([One(f"Reduce{name}", [data, np.array([0, -1])], {"keepdims": 0}) for name in names])


@pytest.mark.parametrize("skips", [0, 1])
def test_no_axes(skips):
    data = DATA.astype("float32")
    empty = [np.array([], "int64"), None]
    agree(
        [One(f"Reduce{name}", [data, axes], {"noop_with_empty_axes": skips}) for name in REDUCTIONS for axes in empty]
    )


def test_axes_as_an_attribute():
    agree([fed(f"Reduce{name}", DATA.astype("float32"), axes=[1], keepdims=1) for name in REDUCTIONS], 12)


def test_truth_values_and_small_integers():
    truths = np.array([[True, False], [True, True]])
    small = np.array([[3, -7], [100, 5]], "int8")
    rows = np.array([1])
    agree([One(f"Reduce{name}", [data, rows]) for name in ("Max", "Min") for data in (truths, small)], 20)


def test_exponentials_do_not_overflow():
    agree([fed("ReduceLogSumExp", np.array([[500.0, 499.0], [-np.inf, -np.inf]], "float32"))])


def test_means_of_integers_round_toward_zero():
    agree([One("ReduceMean", [np.array([[-3, -4], [3, 4]], kind), np.array([1])]) for kind in ("int32", "int64")])


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_places(name):
    ties = np.array([[2, 1, 2, 1], [0, 3, 3, 0]])
    kinds = ("float32", "float64", "int32", "int8", "uint8", "float16")
    last = [
        fed(name, ties.astype(kind), axis=-1, select_last_index=flag, keepdims=flag)
        for kind in kinds
        for flag in (0, 1)
    ]
    agree([*last, fed(name, ties.astype("float32"))], 13)


def test_places_of_old_operators():
    agree([fed("ArgMax", DATA.astype("float32"), axis=2), fed("ArgMin", DATA.astype("float32"))], 8)


@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(reverse):
    all_attributes = [{"reverse": reverse, "exclusive": exclusive} for exclusive in (0, 1)]
    kinds = ("float32", "float64", "int32", "int64")
    agree(
        [
            One("CumSum", [DATA.astype(kind), np.array(-2)], attributes)
            for kind in kinds
            for attributes in all_attributes
        ]
    )
    agree([One("CumProd", [DATA.astype("float32"), np.array(1)], attributes) for attributes in all_attributes], 26)
