"""The greatest and the least, against ONNX Runtime: where nothing is finite, of equal ones, of NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree, model
from tests.support.operator_cases import Case, computed

LAST = np.array([-1])


def _masked(kind: str = "float32") -> Any:
    """Return rows that are all minus infinity, but for one element."""
    data = np.full((2, 3, 4), -np.inf, kind)
    data[1, 2, 3] = 5
    return data


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_rows_behind_a_mask(kind: str) -> None:
    data = _masked(kind)
    agree([One("ReduceMax", [data, LAST]), One("ReduceMin", [-data, LAST], {"keepdims": 0})])


def test_places_behind_a_mask() -> None:
    data = _masked()
    how = [{"axis": axis, "select_last_index": last} for axis in (0, -1) for last in (0, 1)]
    agree(
        [One("ArgMax", [data], attributes) for attributes in how]
        + [One("ArgMin", [-data], attributes) for attributes in how]
    )
    agree([One("Hardmax", [data], {"axis": axis}) for axis in (0, 1, -1)])


def test_the_first_and_the_last_of_equal_ones() -> None:
    data = np.array([[3, 1, 3, 1], [2, 2, 2, 2]], "float32")
    how = [{"axis": 1, "select_last_index": last, "keepdims": last} for last in (0, 1)]
    agree(
        [
            One(name, [data.astype(kind)], attributes)
            for name in ("ArgMax", "ArgMin")
            for kind in ("float32", "int32")
            for attributes in how
        ]
    )


def test_the_place_in_a_row_of_nan_is_in_it() -> None:
    data = np.full((2, 5), np.nan, "float32")
    proto, values = model([One("ArgMax", [data], {"axis": 1}), One("ArgMin", [data], {"axis": 1})], 18)
    for indices in computed(Case("nan", proto, values, (), 0.0, 0.0)):
        assert ((indices >= 0) & (indices < 5)).all()


def test_all_axes_and_none() -> None:
    data = _masked()
    agree([One("ReduceMax", [data]), One("ReduceMin", [data, np.array([], "int64")], {"noop_with_empty_axes": 1})])
