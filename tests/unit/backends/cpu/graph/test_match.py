"""What stands between layers: before their results are stored, as a layer, or in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import relax_nets
from tests.support.relax_nets import CONV, W, counts, epilogue_kinds, layers, moved, net, normal

pytestmark = pytest.mark.usefixtures("naive")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([("Relu", "c", "y")], ["relu"]),
        ([("Clip", "c zero six", "y")], ["clip"]),
        ([("LeakyRelu", "c", "y", {"alpha": 0.1})], ["leaky_relu"]),
        ([("Sigmoid", "c", "y")], ["sigmoid"]),
        ([("Tanh", "c", "y")], ["tanh"]),
        ([("HardSigmoid", "c", "y")], ["hard_sigmoid"]),
        ([("HardSwish", "c", "y")], ["hard_swish"]),
        ([("Sigmoid", "c", "a"), ("Mul", "c a", "y")], ["silu"]),
        ([("Gelu", "c", "y")], ["gelu"]),
        ([("Mul", "c n", "a"), ("Add", "a n", "y")], []),  # in weights and bias
        ([("Relu", "c", "a"), ("Mul", "a n", "b"), ("Add", "b n", "y")], ["relu", "scale", "shift"]),
        ([("Dropout", "c", "a"), ("Relu", "a", "y")], ["relu"]),
    ],
)
def test_what_follows_a_convolution(nodes, expected):
    weights = W | {"zero": np.float32(0), "six": np.float32(6), "n": normal(16, 1, 1)}
    module = moved(net([CONV, *nodes], (1, 3, 4, 5), weights))
    assert counts(module) == {"Conv": 1, "Map": 1}
    assert epilogue_kinds(layers(module)[0]) == expected


def test_a_result_that_is_read_twice_is_stored_first():
    module = moved(
        net(
            [CONV, ("Relu", "c", "a"), ("Sigmoid", "c", "b"), ("Add", "a b", "y")],
            (1, 3, 4, 5),
            W,
        )
    )
    assert [epilogue_kinds(layer) for layer in layers(module)] == [[], ["relu"], ["sigmoid", "add"], []]


def test_a_sum_belongs_to_the_later_of_two_layers():
    nodes = [CONV, ("Conv", "x v", "d"), ("Add", "c d", "e"), ("Relu", "e", "y")]
    first, second, _ = layers(moved(net(nodes, (1, 3, 4, 5), W | {"v": normal(16, 3, 1, 1, seed=1)})))
    assert (epilogue_kinds(first), epilogue_kinds(second)) == ([], ["add", "relu"])


def test_a_tensor_on_plain_layout_may_be_added():
    module = moved(
        net(
            [("Softmax", "x", "s"), ("Conv", "x w", "c"), ("Add", "c s", "y")],
            (1, 16, 4, 5),
            {"w": normal(16, 16, 1, 1)},
        )
    )
    names = [kind if isinstance(kind, str) else type(kind).__name__ for kind, _ in relax_nets.calls(module)]
    assert names == ["relax.nn.softmax", "Map", "Map", "Conv", "Map"]


def test_steps_between_layers_are_maps():
    nodes = [
        CONV,
        ("MaxPool", "c", "p", {"kernel_shape": [2, 2]}),
        ("Mul", "p n", "a"),
        ("Relu", "a", "b"),
        ("Add", "b p", "y"),
    ]
    _, pool, output, _ = layers(moved(net(nodes, (1, 3, 4, 5), W | {"n": normal(16, 1, 1)})))
    assert (epilogue_kinds(pool), epilogue_kinds(output)) == ([], ["scale", "relu", "add"])


def test_a_gate_of_one_pixel():
    nodes = [CONV, ("GlobalAveragePool", "c", "g"), ("Sigmoid", "g", "s"), ("Mul", "s c", "y")]
    _, gate, product, _ = layers(moved(net(nodes, (1, 3, 4, 5), W)))
    assert epilogue_kinds(gate) == ["sigmoid"]
    assert (epilogue_kinds(product), product.epilogue[0].other.height) == (["mul"], 1)


def test_what_relax_does_to_each_element_stays_in_blocks():
    nodes = [CONV, ("Exp", "c", "a"), ("Sub", "c a", "b"), ("Conv", "b v", "y")]
    module = moved(net(nodes, (1, 3, 4, 5), W | {"v": normal(8, 16, 1, 1)}))
    assert counts(module) == {"Conv": 2, "exp": 1, "subtract": 1, "Map": 1}
    [exp] = [binding for kind, binding in relax_nets.calls(module) if kind == "relax.exp"]
    assert [int(size) for size in exp.var.ty.shape.values] == [1, 2, 4, 5, 8]


@pytest.mark.parametrize(("channels", "stays"), [(16, True), (12, False)])
def test_nothing_that_makes_infinities_of_zeros_where_blocks_are_filled_up(channels, stays):
    nodes = [CONV, ("Log", "c", "a"), ("Conv", "a v", "y")]
    module = moved(net(nodes, (1, 3, 4, 5), {"w": normal(channels, 3, 1, 1), "v": normal(8, channels, 1, 1)}))
    assert counts(module)["Map"] == (1 if stays else 3)
