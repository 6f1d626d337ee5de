"""Rounds of a Loop whose condition counts, as TensorFlow's `while` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from toolchain.models.simplify import loops

MOST = 50
OPSETS = [helper.make_opsetid("", 17)]


def _values(*names: str) -> list[Any]:
    return [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in names]


def _while(trip_count: str = "", first: str = "") -> onnx.NodeProto:
    """Return `while n < end: n += step; data *= data`, where `end` is handed on and `step` is the body's own."""
    nodes = [
        helper.make_node("Add", ["n", "step"], ["n2"]),
        helper.make_node("Mul", ["data", "data"], ["data2"]),
        helper.make_node("Cast", ["n2"], ["wide"], to=onnx.TensorProto.INT64),
        helper.make_node("Less", ["wide", "end"], ["on2"]),
    ]
    step = numpy_helper.from_array(np.array(2, np.int32), "step")
    body = helper.make_graph(
        nodes, "b", _values("i", "on", "data", "n", "end"), _values("on2", "data2", "n2", "end"), [step]
    )
    return helper.make_node("Loop", [trip_count, first, "x", "start", "stop"], ["y", "", ""], body=body)


def _counted(node: onnx.NodeProto, **values: Any) -> int | None:
    constants = {name: numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()}
    return loops.trip_count(node, constants, OPSETS, MOST)


@pytest.mark.parametrize(("start", "rounds"), [(0, 4), (1, 3), (6, 1), (9, 1)])
def test_a_condition_that_counts(start: int, rounds: int) -> None:
    assert _counted(_while(), start=np.int32(start), stop=7) == rounds


def test_the_trip_count_ends_it_before() -> None:
    assert _counted(_while("limit"), start=np.int32(0), stop=7, limit=2) == 2


def test_a_condition_that_is_false_from_the_start() -> None:
    constants = {"start": np.int32(0), "stop": 7}
    assert _counted(_while(first="never"), never=np.zeros((), bool), **constants) == 0
    assert _counted(_while(first="never"), **constants) is None


def test_a_count_that_is_computed_from_the_data() -> None:
    assert _counted(_while(), start=np.int32(0)) is None
    assert _counted(_while("limit"), start=np.int32(0), stop=7) is None


def test_a_loop_without_an_end_is_counted_to_where_it_is_too_long() -> None:
    assert _counted(_while(), start=np.int32(0), stop=10_000) == MOST + 1
