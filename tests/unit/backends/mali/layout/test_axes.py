"""Where dimensions are in both layouts, and back."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.backends.mali.layout import axes


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_the_second_dimension_is_last(shape):
    array = np.zeros(shape)
    assert array.transpose(axes.order(len(shape))).shape == axes.transposed_shape(shape)
    assert axes.transposed_shape(shape)[-1] == shape[1]


@pytest.mark.parametrize(("shape", "flat"), [((1, 8, 1, 1), True), ((2, 1, 3, 4), True), ((1, 8, 1, 2), False)])
def test_an_image_is_flat_if_its_elements_are_in_the_same_order(shape, flat):
    array = np.arange(np.prod(shape)).reshape(shape)
    same = array.transpose(axes.order(len(shape))).ravel() == array.ravel()
    assert axes.is_flat(shape) is flat is bool(same.all())
