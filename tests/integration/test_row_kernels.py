"""Every operator over rows, on every processor, over many numbers of rows and row lengths: none is wrong.

A few shapes by default, with those that have been wrong; TOOLCHAIN_ROWS is how many, of 4,900, and TOOLCHAIN_ROWS_SEED
says which: `make nightly` tries others each day.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.support import nets, processors, row_kernels
from tests.support.row_kernels import Case

SHAPES = int(os.environ.get("TOOLCHAIN_ROWS", "2"))
SEED = int(os.environ.get("TOOLCHAIN_ROWS_SEED", "0"))
AT_ONCE = 120  # cases of a network
LIMIT = {"float32": 1e-4, "float16": 2e-2}
"""Of the largest difference relative to the largest number of an output."""

# PoCL has no half precision; `make opencl` has these operators in it, on other OpenCLs.
KINDS = [*((name, "float32") for name in processors.ALL), *((name, "float16") for name in processors.CPUS)]

pytestmark = pytest.mark.timeout(24 * 3600 if "TOOLCHAIN_ROWS" in os.environ else 600)


def cases(kind):
    """Return the cases of a kind of processor and numbers: fewer in half precision, and on PoCL, which is slow."""
    shapes = row_kernels.shapes(SEED + KINDS.index(kind))
    is_usual = kind[1] == "float32" and kind[0] in processors.CPUS
    count = SHAPES if is_usual or len(shapes) == SHAPES else SHAPES // 3 + 1
    every = (
        Case(operator, *shape, number % len(row_kernels.READERS))
        for operator in row_kernels.OPERATORS
        for number, shape in enumerate(shapes[:count])
    )
    return [case for case in every if case.is_defined(kind[1])]


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_all_are_right(name, dtype, tmp_path):
    processors.require_one(name)
    wrong, kernel_cases = [], cases((name, dtype))
    for first in range(0, len(kernel_cases), AT_ONCE):
        chunk = kernel_cases[first : first + AT_ONCE]
        proto, feeds, owners = row_kernels.network(chunk, dtype)
        single, _, _ = row_kernels.network(chunk, "float32")
        expected = nets.run(single, {name: array.astype(np.float32) for name, array in feeds.items()})
        results = processors.computed(name, proto, feeds, tmp_path / str(first))
        differences = map(processors.difference, results, expected)
        wrong += [(str(case), gap) for case, gap in zip(owners, differences, strict=True) if gap > LIMIT[dtype]]
    assert wrong == []
