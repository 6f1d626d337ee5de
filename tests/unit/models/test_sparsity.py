"""Zero blocks of weights: counted, and made in models that have none."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from tests.support import nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import sparsity
from toolchain.models.sparsity import Block


def network(**weights_by_layer):
    """Return a network of a convolution `conv`, a Gemm `gemm` with transB, and a MatMul `product`."""
    random = np.random.default_rng(0)
    shapes = {"conv": (32, 16, 3, 3), "gemm": (40, 32), "product": (40, 24)}
    arrays = {name: weights_by_layer.get(name, random.standard_normal(shape)) for name, shape in shapes.items()}
    nodes = [
        node("Conv", ["x", "conv"], ["c"], name="conv"),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "gemm"], ["g"], name="gemm", transB=1),
        node("MatMul", ["g", "product"], ["y"], name="product"),
    ]
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    return nets.model(nodes, [value("x", (1, 16, 5, 5))], [value("y", None)], weights)


def weights_of(proto, name):
    return numpy_helper.to_array(next(tensor for tensor in proto.graph.initializer if tensor.name == name))


@pytest.mark.parametrize("seed", [None, 3], ids=["smallest", "random"])
def test_each_layer_has_the_share_of_zero_blocks(seed):
    proto = network()
    layers = sparsity.prune(proto, 0.75, Block(8, 1), seed)
    assert [layer.name for layer in layers] == ["conv", "gemm", "product"]
    measured = sparsity.measure(proto.graph)
    assert measured.blocks["8x1"] == pytest.approx(0.75, abs=0.01)
    assert measured.zeros == pytest.approx(0.75, abs=0.01)
    assert measured.blocks["4x1"] >= measured.blocks["8x1"] >= measured.blocks["16x1"]
    # Outputs are the last axis of a MatMul's weights, and the first one of the others'.
    product = weights_of(proto, "product").T.reshape(3, 8, 40)
    assert (np.count_nonzero(product, axis=1) % 8 == 0).all()
    conv = weights_of(proto, "conv").reshape(4, 8, 16, 9)
    assert (np.count_nonzero(conv, axis=1) % 8 == 0).all()


def test_blocks_with_the_smallest_weights_become_zero():
    gemm = np.ones((40, 32))
    gemm[8:16, 5] = 0.1
    proto = network(gemm=gemm)
    sparsity.prune(proto, 1 / 160, Block(8, 1))
    pruned = weights_of(proto, "gemm")
    assert np.count_nonzero(pruned == 0) == 8
    assert (pruned[8:16, 5] == 0).all()


def test_the_same_seed_gives_the_same_model():
    first, second, other = network(), network(), network()
    for proto, seed in ((first, 1), (second, 1), (other, 2)):
        sparsity.prune(proto, 0.5, Block(4, 2), seed)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    assert first != other


def test_layers_that_are_too_small_stay():
    proto = network()
    layers = sparsity.prune(proto, 0.5, Block(40, 1))
    assert [layer.name for layer in layers] == ["gemm"]
    with pytest.raises(InputError, match="no layer of the model has 64 outputs"):
        sparsity.prune(proto, 0.5, Block(64, 1))


@pytest.mark.parametrize("text", ["16", "0x1", "16x", "x1", "16x1x1", "-8x1", "9999x1"])
def test_a_block_is_outputs_by_inputs(text):
    with pytest.raises(InputError, match="not a block of weights"):
        sparsity.parse_block(text)


def test_a_model_without_layers_has_no_sparsity():
    proto = nets.model([node("Relu", ["x"], ["y"])], [value("x", (1, 4))], [value("y", None)])
    assert sparsity.measure(proto.graph) is None
