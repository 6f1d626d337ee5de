"""Which constants are folded: all, but for the bytes that layers read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from tests.support.qdq_nets import imported
from tests.support.relax_nets import bindings
from toolchain.backends.cpu.graph.rewriting import fold_except_weights


def constants_of(reader, shape):
    """Return the types of the constants that a network reads whose weights are bytes."""
    constants = {
        "w": np.arange(np.prod(shape)).astype(np.int8).reshape(shape),
        "scale": np.float32(0.1),
        "zero": np.int8(3),
    }
    nodes = [node("DequantizeLinear", ["w", "scale", "zero"], ["v"]), reader]
    proto = nets.model(nodes, [value("x", (1, 4, 3, 3))], [value("y", None)], constants)
    calls = [binding.value for binding in bindings(fold_except_weights(imported(proto)))]
    return {
        str(argument.ty.dtype)
        for call in calls
        for argument in call.args
        if hasattr(argument, "value") and argument.ty.shape.values
    }


@pytest.mark.parametrize(
    ("reader", "shape", "expected"),
    [
        (node("Conv", ["x", "v"], ["y"]), (4, 4, 1, 1), {"int8"}),
        (node("Add", ["x", "v"], ["y"]), (1, 4, 1, 1), {"int8"}),
        (node("PRelu", ["x", "v"], ["y"]), (4, 1, 1), {"float32"}),  # no layer reads its bytes
        (node("Concat", ["x", "v"], ["y"], axis=1), (1, 2, 3, 3), set()),  # in a tuple
    ],
    ids=lambda item: getattr(item, "op_type", None),
)
def test_bytes_of_layers_stay(reader, shape, expected):
    assert constants_of(reader, shape) == expected


def test_single_numbers_are_folded():
    """Patterns of several operations, such as a GELU, look for them."""
    assert constants_of(node("Mul", ["x", "v"], ["y"]), (1, 1, 1, 1)) == {"float32"}
