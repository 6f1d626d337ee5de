from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, qdq_nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.quantize import calibrate as calibration
from toolchain.quantize.graph import Graph
from toolchain.quantize.plan import plan
from toolchain.quantize.ranges import Grid, Range, covering
from toolchain.quantize.scales import Exponents, rounded

SHAPE = (1, 2, 5, 5)


@pytest.fixture
def graph():
    weights = {
        "w": np.ones((2, 2, 1, 1), np.float32),
        "v": qdq_nets.weights(2, 2, 1, 1),
        "0": np.float32(0),
        "6": np.float32(6),
    }
    nodes = [
        node("Conv", ["x", "w"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("Conv", ["r", "v"], ["c"]),
        node("Clip", ["c", "0", "6"], ["y"]),
    ]
    return Graph(nets.model(nodes, [value("x", SHAPE)], [value("y", SHAPE)], weights))


def samples(*levels):
    return [{"x": np.full(SHAPE, level, np.float32)} for level in levels]


def test_means_and_ranges_are_those_of_all_samples(graph):
    result = calibration.calibrate(graph, plan(graph, ("s",), "net"), samples(1, 2, -3), "max")
    np.testing.assert_allclose(result.means["r"], [2, 2])  # of 2, 4 and 0
    assert result.grids["r"] == Range(0, 4).on(covering(4) - 1)


def test_what_is_clipped_is_covered_by_any_method(graph):
    weight = next(tensor for tensor in graph.proto.graph.initializer if tensor.name == "v")
    weight.CopyFrom(nets.graph([], [], [], {"v": np.eye(2, dtype=np.float32)[:, :, None, None]}).initializer[0])
    inputs = [{"x": np.abs(qdq_nets.random(SHAPE, 1)) * 0.01}, *samples(0.01)]
    inputs[0]["x"][0, 0, 0, 0] = 50
    result = calibration.calibrate(graph, plan(graph, ("s",), "net"), inputs, "percentile")
    assert result.grids["y"] == Range(0, 6).on(covering(6) - 1)


def test_infinite_activations_are_told(graph):
    with pytest.raises(InputError, match=r"'r' .* in sample 1") as fault:
        calibration.calibrate(graph, plan(graph, ("s",), "net"), samples(1, np.inf), "mse")
    assert "remove that sample" in fault.value.hint


def test_the_bias_makes_up_for_rounded_weights(graph):
    (layer,) = plan(graph, ("s",), "net").layers
    exponents = Exponents(dict.fromkeys("ry", Grid.about(-4)), {"v": (-2,)})
    mean = np.array([1.5, 0.5])
    weight = graph.array("v")[:, :, 0, 0]
    lost = (weight - rounded(weight, -2) / 4) @ mean
    assert np.abs(lost).min() > 0.01
    np.testing.assert_allclose(calibration.corrected_bias(graph, layer, exponents, mean), lost)


def test_the_bias_of_groups_is_that_of_their_own_channels():
    weight = np.array([0.3, 0.6, 0.9, 1.2], np.float32)[:, None, None, None]
    nodes = [node("Conv", ["x", "g"], ["y"], group=4)]
    graph = Graph(nets.model(nodes, [value("x", (1, 4, 2, 2))], [value("y", None)], {"g": weight}))
    (layer,) = plan(graph, (), "net").layers
    exponents, mean = Exponents(dict.fromkeys("xy", Grid.about(-4)), {"g": (-1,)}), np.array([1.0, 2.0, 4.0, 8.0])
    lost = (weight[:, 0, 0, 0] - rounded(weight[:, 0, 0, 0], -1) / 2) * mean
    assert np.abs(lost).min() > 0.01
    np.testing.assert_allclose(calibration.corrected_bias(graph, layer, exponents, mean), lost)
