"""Single-operator cases of the onnx wheel: right, or refused by name.

Every EACH-th case is run; `make operators` runs all of them, and writes the page of operators.
"""

from __future__ import annotations

import collections
import os

import numpy as np
import pytest

from tests.support import opencl, operator_cases, operator_table
from tests.support.operator_cases import REFUSED, RIGHT

EACH = int(os.environ.get("TOOLCHAIN_OPERATORS", "40"))
SHARE = 0.95 if EACH == 1 else 0.8  # of the cases whose values a board can have; few cases say less


@pytest.fixture(scope="module")
def verdicts():
    return operator_cases.run(operator_table.names()[::EACH])


@pytest.mark.timeout(3600)
def test_no_case_is_wrong_or_fails_in_another_way(verdicts):
    assert not [verdict for verdict in verdicts if verdict.kind not in {RIGHT, REFUSED}]


def test_nearly_all_are_right(verdicts):
    counted = collections.Counter(verdict.kind for verdict in verdicts if not operator_table.is_exempt(verdict.name))
    assert counted[RIGHT] >= SHARE * counted.total(), counted


ON_A_GPU = (
    "test_nonzero_example",
    "test_cumsum_2d_axis_1",
    "test_col2im_strides",
    "test_scatternd_add",
)


def test_operators_that_are_computed_in_order_on_an_opencl_device():
    """All cases, or a few of those whose steps depend on each other, or that read behind a condition."""
    opencl.require_opencl()
    names = operator_table.promised() if EACH == 1 else ON_A_GPU
    verdicts = operator_cases.run(names, kind=operator_cases.OPENCL)
    assert not [verdict for verdict in verdicts if verdict.kind not in {RIGHT, REFUSED}]
    assert EACH == 1 or {verdict.kind for verdict in verdicts} == {RIGHT}


def test_half_precision_alone_may_be_off_by_its_own_rounding():
    assert operator_cases.tolerance(1e-3, np.dtype(np.float16)) == 2**-9
    assert operator_cases.tolerance(1e-2, np.dtype(np.float16)) == 1e-2
    assert operator_cases.tolerance(1e-3, np.dtype(np.float32)) == 1e-3
