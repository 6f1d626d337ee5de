"""Single-operator cases of the onnx wheel: right, or refused by name.

Every EACH-th case is run; `make operators` runs all of them, and writes the page of operators.
"""

from __future__ import annotations

import collections
import os

import pytest

from tests.support import operator_cases, operator_table
from tests.support.operator_cases import REFUSED, RIGHT

EACH = int(os.environ.get("TOOLCHAIN_OPERATORS", "12"))
SHARE = 0.95 if EACH == 1 else 0.8  # of the cases whose values a board can have; few cases say less


@pytest.fixture(scope="module")
def verdicts():
    return operator_cases.run(operator_table.names()[::EACH])


@pytest.mark.timeout(3600)
def test_no_case_is_wrong_or_fails_in_another_way(verdicts):
    assert not [one for one in verdicts if one.kind not in {RIGHT, REFUSED}]


def test_nearly_all_are_right(verdicts):
    counted = collections.Counter(one.kind for one in verdicts if not operator_table.is_exempt(one.name))
    assert counted[RIGHT] >= SHARE * counted.total(), counted
