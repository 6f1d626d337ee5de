"""Bias correction takes back by how much rounded weights shift the mean of a layer's sums."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, qdq_nets
from tests.support.nets import node
from toolchain.models import source
from toolchain.quantize.calibrate import Probe
from toolchain.quantize.real_scales import Quantizer, calibrate, float_network

# All above 0: what rounding does to a weight does not cancel out.
SAMPLES = [{"x": np.abs(qdq_nets.random((1, 6, 12, 12), seed)) + 1} for seed in range(4)]


def quantizers(nodes, weights, folder):
    proto = qdq_nets.floating(nodes, (1, 6, 12, 12), weights)
    network = float_network(source.load(nets.save(proto, folder)))
    quantizer = Quantizer(network, calibrate(network, SAMPLES, "max", lambda _line: None))
    return network.proto, quantizer, quantizer.corrected(SAMPLES, lambda _line: None)


def shifts(proto, quantizer, name="y"):
    """Return the mean error of each channel."""
    exact, rounded = Probe(proto, [name]), Probe(quantizer.quantized(), [name], optimized=False)
    errors = [rounded.run(sample)[name] - exact.run(sample)[name] for sample in SAMPLES]
    return np.abs(np.mean(errors, axis=(0, 1, 3, 4) if errors[0].ndim == 4 else (0, 1)))


@pytest.mark.parametrize("group", [1, 2])
def test_the_mean_of_a_convolution(group, tmp_path):
    weights = {"w": qdq_nets.weights(6, 6 // group, 3, 3), "b": np.linspace(-1, 1, 6).astype(np.float32)}
    proto, plain, corrected = quantizers([node("Conv", ["x", "w", "b"], ["y"], group=group)], weights, tmp_path)
    before, after = shifts(proto, plain), shifts(proto, corrected)
    assert after.max() < before.max() / 3
    assert len(corrected.quantized().graph.node) == len(plain.quantized().graph.node)


@pytest.mark.parametrize("transposed", [0, 1])
def test_the_mean_of_a_product(transposed, tmp_path):
    matrix = qdq_nets.weights(6, 6)
    weights = {"w": matrix.T.copy() if transposed else matrix, "b": np.ones(6, np.float32), "s": np.array([1, 6])}
    nodes = [
        node("GlobalAveragePool", ["x"], ["g"]),
        node("Reshape", ["g", "s"], ["r"]),
        node("Gemm", ["r", "w", "b"], ["y"], transB=transposed),
    ]
    proto, plain, corrected = quantizers(nodes, weights, tmp_path)
    assert shifts(proto, corrected).mean() < shifts(proto, plain).mean()


def test_layers_that_share_a_bias_are_corrected_one_by_one(tmp_path):
    weights = {
        "w": qdq_nets.weights(6, 6, 1, 1),
        "v": qdq_nets.weights(6, 6, 1, 1, seed=1),
        "b": np.ones(6, np.float32),
    }
    nodes = [node("Conv", ["x", "w", "b"], ["c"]), node("Conv", ["c", "v", "b"], ["y"])]
    proto, plain, corrected = quantizers(nodes, weights, tmp_path)
    assert shifts(proto, corrected).mean() < shifts(proto, plain).mean()


def test_layers_without_a_bias_stay_as_they_are(tmp_path):
    weights = {"w": qdq_nets.weights(6, 6, 1, 1)}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Conv", ["c", "w"], ["y"])]
    _, plain, corrected = quantizers(nodes, weights, tmp_path)
    assert corrected.quantized().SerializeToString(deterministic=True) == plain.quantized().SerializeToString(
        deterministic=True
    )
