from __future__ import annotations

import numpy as np
import pytest

from toolchain import variants
from toolchain.errors import InputError
from toolchain.tensors import TensorSpec

SIGNATURES = {
    f"length-{size}": (TensorSpec("ids", (1, size), "int64"), TensorSpec("mask", (1, size), "float32"))
    for size in (4, 8)
}


def arrays(ids: tuple[int, ...], mask: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {"ids": np.zeros(ids, np.int64), "mask": np.zeros(mask, np.float32)}


@pytest.mark.parametrize("size", [4, 8])
def test_the_variant_of_arrays_and_of_samples(size):
    assert variants.select(SIGNATURES, arrays((1, size), (1, size)), "a file") == f"length-{size}"
    assert variants.select(SIGNATURES, arrays((5, 1, size), (5, 1, size)), "a file") == f"length-{size}"


@pytest.mark.parametrize("inputs", [arrays((1, 4), (1, 8)), arrays((1, 5), (1, 5)), {"ids": np.zeros((1, 4))}, {}])
def test_arrays_that_fit_no_variant(inputs):
    with pytest.raises(InputError, match="no variant takes the shapes of a file") as caught:
        variants.select(SIGNATURES, inputs, "a file")
    assert "variant length-8: ids 1x8 int64, mask 1x8 float32" in caught.value.details
