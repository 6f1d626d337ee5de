"""What follows a layer on bytes is done in its kernel, if bytes come of it and nobody else needs what is between."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain.backends.graph.values import read
from toolchain.backends.mali.int8.epilogues import Limits, epilogue_of, readers
from toolchain.models import importer, source

ZERO = np.array(0, np.uint8)


def found(folder, after, outputs=("y",), **initializers):
    """Return the epilogue of a layer of bytes that some nodes follow; it makes c."""
    nodes = [
        node("DequantizeLinear", ["x", "step", "zero"], ["a"]),
        node("DequantizeLinear", ["w", "step", "none"], ["b"]),
        node("Conv", ["a", "b"], ["c"]),
        *after,
        node("QuantizeLinear", [after[-1].output[0] if after else "c", "step", "zero"], ["y"]),
    ]
    constants = {
        "step": np.float32(0.1),
        "zero": ZERO,
        "none": np.array(0, np.int8),
        "w": np.ones((4, 4, 1, 1), np.int8),
        **initializers,
    }
    results = [value(name, None, "uint8" if name == "y" else "float32") for name in outputs]
    proto = nets.model(nodes, [value("x", (1, 4, 3, 3), "uint8")], results, constants)
    module = importer.import_model(source.load(nets.save(proto, folder))).module
    (block,) = [block for block in module["main"].body.blocks if isinstance(block, relax.DataflowBlock)]
    operations = read(block, module).operations
    (layer,) = [operation for operation in operations if operation.name == "nn.conv2d"]
    return epilogue_of(layer, readers(operations))


def test_bias_and_limits_are_steps_in_order(tmp_path):
    bias = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    after = [
        node("Add", ["c", "bias"], ["d"]),
        node("Clip", ["d", "low", "high"], ["e"]),
        node("Relu", ["e"], ["f"]),
    ]
    epilogue = found(tmp_path, after, bias=bias, low=np.float32(-1), high=np.float32(6))
    added, *limits = epilogue.steps
    np.testing.assert_array_equal(added, [0, 1, 2, 3])
    assert limits == [Limits(-1.0, np.inf), Limits(-np.inf, 6.0), Limits(0.0, np.inf)]
    assert (epilogue.grid.zero, len(epilogue.inner)) == (-128, 5)


@pytest.mark.parametrize(
    ("after", "outputs", "initializers"),
    [
        ([node("Relu", ["c"], ["d"])], ("y", "d"), {}),
        ([node("Relu", ["c"], ["d"])], ("y", "c"), {}),
        ([node("Sigmoid", ["c"], ["d"])], ("y",), {}),
        ([node("Add", ["c", "more"], ["d"])], ("y",), {"more": np.ones((1, 4, 3, 3), np.float32)}),
        ([node("Add", ["c", "c"], ["d"])], ("y",), {}),
    ],
    ids=["activation-is-wanted", "layer-is-wanted", "other-operator", "other-for-each-pixel", "itself"],
)
def test_what_cannot_be_in_the_kernel_is_not(after, outputs, initializers, tmp_path):
    assert found(tmp_path, after, outputs, **initializers) is None
