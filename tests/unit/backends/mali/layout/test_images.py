"""Transposing a module: inputs and outputs of the network stay as they are."""

from __future__ import annotations

import pytest

from tests.support.channels_last import SHAPE, conv, net, transposed
from tests.support.nets import node
from toolchain.backends.graph.values import shape_of


@pytest.mark.parametrize("half", [False, True])
def test_inputs_and_outputs_stay_as_they_are(half, tmp_path):
    main = transposed(net([conv("x", "a"), node("Relu", ["a"], ["y"])]), tmp_path, half=half)["main"]
    assert shape_of(main.params[0].ty) == shape_of(main.ret_ty) == SHAPE
