"""Convolutions whose weights are int8 and an offset, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cpu_bytes import MACHINES, check, conv, require_dot
from tests.unit.backends.cpu.kernels.int8.test_conv import CASES
from toolchain.backends.cpu.kernels.int8 import conv as template
from toolchain.backends.cpu.kernels.int8 import grids


@pytest.fixture(autouse=True)
def _dot():
    require_dot()


@pytest.mark.parametrize("width", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_weights_on_both_sides_of_int8(case, width):
    data, channels, kernel, options = CASES[case]
    processor = MACHINES[width]
    check(template, replace(conv(data, channels, kernel, processor.lanes, **options), offset=True), processor)


def test_only_channels_that_do_not_fit_have_an_offset():
    weights = np.array([[-128, 127], [0, 255], [-255, 0], [1, 128]], np.int16).reshape(4, 2, 1, 1)
    low, offsets = grids.to_int8(weights)
    assert offsets.tolist() == [0, 128, -127, 129]
    assert (low + offsets[:, None, None, None] == weights).all()
