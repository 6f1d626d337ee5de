from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from toolchain.quantize import network
from toolchain.quantize.network import Noise
from toolchain.quantize.write import Written


def test_a_tenth_of_the_signal_is_20_db():
    noise = Noise()
    noise.add(np.array([3.0, 4.0]), np.array([3.3, 4.4]))
    noise.add(np.zeros(2), np.zeros(2))
    assert noise.ratio == 20


def test_no_noise_has_no_ratio():
    noise = Noise()
    noise.add(np.ones(3), np.ones(3))
    assert noise.ratio is None


def test_noise_alone_has_one():
    noise = Noise()
    noise.add(np.zeros(3), np.ones(3))
    assert noise.ratio < -1000


def negated(shape, operator="Neg"):
    nodes = [node("Relu", ["x"], ["r"]), node(operator, ["r"], ["y"])]
    return nets.model(nodes, [value("x", shape)], [value("y", shape)])


def compared(shape, samples):
    """Compare a net with one whose result has the other sign."""
    quantized = Written(negated(shape, "Identity"), {"r": "r"}, ())
    return network.compare(
        negated(shape), quantized, ["r"], [{"x": np.array(sample, np.float32).reshape(shape)} for sample in samples]
    )


def test_layers_and_results_are_compared():
    comparison = compared((1, 2), [[1, 2]])
    assert (comparison.layers, comparison.output) == ({"r": None}, pytest.approx(-6.02))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1), (1, 1, 3)])
def test_classes_agree_where_the_first_is_the_same(shape):
    assert compared(shape, [[1, 2, 3], [1, 1, 1], [0, 0, 0], [3, 1, 2]]).agreement == 0.5


def test_every_image_of_a_batch_counts():
    assert compared((2, 3), [[[1, 2, 3], [0, 0, 0]]]).agreement == 0.5


@pytest.mark.parametrize("shape", [(6,), (1, 2, 3), (6, 1)])
def test_other_results_are_no_classes(shape):
    assert compared(shape, [[1, 2, 3, 4, 5, 6]]).agreement is None
