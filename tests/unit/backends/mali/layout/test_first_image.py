"""Images of a first convolution: which are padded to four channels, and with what."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.backends.mali.layout import first_image


@pytest.mark.parametrize(("channels", "suits"), [(1, False), (2, False), (3, True), (4, True), (5, False)])
def test_images_of_nearly_a_vector_are_padded(channels, suits):
    assert first_image.suits(channels) == suits


def test_the_image_has_its_padding_and_a_vector_a_pixel():
    assert first_image.shape((2, 3, 224, 220), (3, 2, 1, 0)) == (2, 228, 222, 4)


def test_a_pixel_is_stored_as_a_vector():
    text = first_image.kernel((1, 3, 5, 7), (1, 1, 1, 1)).script()
    assert "padded[v, v_1, v_2 * 9 + v_3, 0:4] = " in text
    assert text.count("T.if_then_else") == 3


def test_added_channels_have_no_weight():
    array = np.ones((7, 7, 3, 8), np.float32)
    padded = first_image.weights(array)
    assert padded.shape == (7, 7, 4, 8)
    assert padded[:, :, :3].all()
    assert not padded[:, :, 3].any()
