"""Numbers that follow from a count, for each value of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolchain.models.tails import sizes
from toolchain.models.tails.sizes import Table

COUNT = Table("n", np.arange(9).reshape(-1, 1))


def _min_with(table, limit):
    return sizes.compute("Min", {}, [table, sizes.fixed(np.array([limit]))])


@given(st.integers(0, 12))
def test_what_is_there_and_what_is_missing_add_up(limit):
    there = _min_with(COUNT, limit)
    missing = sizes.compute("Sub", {}, [sizes.fixed(np.array([limit])), there])
    assert sizes.compute("Add", {}, [there, missing]).list() == [limit]
    assert there.is_constant is (limit == 0)


@pytest.mark.parametrize(
    ("operator", "attributes", "more", "expected"),
    [
        ("Concat", {"axis": 0}, [np.array([4])], lambda n: [n, 4]),
        ("Mul", {}, [np.array([[2], [3]])], lambda n: [[2 * n], [3 * n]]),
        ("Div", {}, [np.array([2])], lambda n: [n // 2]),
        ("Mod", {}, [np.array([4])], lambda n: [n % 4]),
        ("Gather", {"axis": 0}, [np.array(0)], lambda n: n),
        ("Unsqueeze", {}, [np.array([0])], lambda n: [[n]]),
        ("Squeeze", {}, [], lambda n: n),
        ("Expand", {}, [np.array([2, 1])], lambda n: [[n], [n]]),
        ("Reshape", {}, [np.array([1, 1])], lambda n: [[n]]),
        ("Slice", {}, [np.array([0]), np.array([1])], lambda n: [n]),
        ("ReduceProd", {"keepdims": 0}, [], lambda n: n),
        ("Cast", {"to": 9}, [], lambda n: [n != 0]),
        ("Equal", {}, [np.array([3])], lambda n: [n == 3]),
    ],
)
def test_each_value_is_computed(operator, attributes, more, expected):
    table = sizes.compute(operator, attributes, [COUNT, *map(sizes.fixed, more)])
    np.testing.assert_array_equal(table.values, [expected(n) for n in range(9)])
    assert table.root == "n"


def test_what_has_no_value_for_each_count_is_refused():
    with pytest.raises(ValueError, match="two numbers of results"):
        sizes.compute("Add", {}, [COUNT, Table("m", COUNT.values)])
    with pytest.raises(ValueError, match="division by zero"):
        sizes.compute("Div", {}, [sizes.fixed(np.array([4])), COUNT])
    with pytest.raises(LookupError):
        sizes.compute("Sqrt", {}, [COUNT])
    with pytest.raises(ValueError, match="must not depend"):
        COUNT.constant()
