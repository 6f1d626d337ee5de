"""Int8 with real scales: which layers, what is written, and how near it is to floats."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import int8_nets, nets, qdq_nets
from tests.support.nets import node
from toolchain.errors import InputError
from toolchain.models import source
from toolchain.quantize import real_scales
from toolchain.quantize.calibrate import Probe
from toolchain.quantize.network import Noise

SAMPLES = [{"x": qdq_nets.random((1, 3, 12, 12), seed)} for seed in range(8)]


def loaded(proto, folder):
    return source.load(nets.save(proto, folder))


def quantizer(proto, folder, method="max", samples=SAMPLES):
    network = real_scales.float_network(loaded(proto, folder))
    return real_scales.Quantizer(network, real_scales.calibrate(network, samples, method, lambda _line: None))


def ratio(proto, quantized, samples=SAMPLES):
    """Signal over noise of the outputs in dB."""
    noise, names = Noise(), [value.name for value in proto.graph.output]
    first, second = Probe(proto, names), Probe(quantized, names, optimized=False)
    for sample in samples:
        for name in names:
            noise.add(first.run(sample)[name], second.run(sample)[name])
    return noise.ratio


def operators(proto):
    return [node.op_type for node in proto.graph.node]


def chain(*nodes, **replaced):
    """A network whose second layer may stay float."""
    constants = {name: qdq_nets.weights(8, inputs, 3, 3, seed=inputs) for name, inputs in (("w1", 3), ("w2", 8))}
    return qdq_nets.floating(nodes, (1, 3, 12, 12), constants | replaced)


def test_layers_have_the_operators_up_to_the_next_ones(tmp_path):
    layers = real_scales.float_network(loaded(qdq_nets.residual(), tmp_path)).layers
    assert [(layer.name, layer.operator) for layer in layers] == [
        ("c1", "Conv"), ("c2", "Conv"), ("c3", "Conv"), ("y", "Gemm"),
    ]  # fmt: skip
    assert layers[0].nodes == ("c1", "r1", "p1")
    assert layers[2].nodes == ("c3", "a3", "r3", "g", "f")


def test_what_follows_the_last_layer_stays_float(tmp_path):
    proto = chain(node("Conv", ["x", "w1"], ["c"]), node("Relu", ["c"], ["r"]), node("Sigmoid", ["r"], ["y"]))
    built = quantizer(proto, tmp_path)
    assert [layer.nodes for layer in built.layers] == [("c", "r")]
    kinds = operators(built.quantized())
    assert sorted(kinds) == ["Conv", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear", "Relu", "Sigmoid"]
    assert ratio(proto, built.quantized()) > 30


def test_weights_have_a_scale_for_each_channel_and_no_zero_point(tmp_path):
    proto = quantizer(qdq_nets.residual(), tmp_path).quantized()
    onnx.checker.check_model(proto, full_check=True)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    weights = [
        each for each in proto.graph.node if each.input[0] in constants and constants[each.input[0]].dtype == np.int8
    ]
    assert len(weights) == 4
    for each in weights:
        values, scale, zero = (constants[name] for name in each.input)
        assert scale.shape == (values.shape[0],)
        assert not zero.any()
        assert abs(values.astype(int)).max() <= 127
    activations = [constants[each.input[2]] for each in proto.graph.node if each.op_type == "QuantizeLinear"]
    assert {zero.dtype for zero in activations} == {np.dtype(np.uint8)}


@pytest.mark.parametrize("method", real_scales.CALIBRATORS)
def test_each_method_is_near_floats_and_silent(method, tmp_path, capfd):
    proto = qdq_nets.residual()
    built = quantizer(proto, tmp_path, method)
    assert ratio(proto, built.quantized()) > 25
    assert capfd.readouterr() == ("", "")


def test_two_calibrations_give_the_same(tmp_path):
    first, second = (quantizer(qdq_nets.residual(), tmp_path).quantized() for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_all_layers_on_floats_are_exact(tmp_path):
    proto = qdq_nets.residual()
    built = quantizer(proto, tmp_path)
    assert ratio(proto, built.quantized([layer.name for layer in built.layers])) > 120


def test_a_float_layer_reads_what_is_not_rounded(tmp_path):
    """A channel that is a thousand times as large takes all bytes from the others, which the next layer needs."""
    large = qdq_nets.weights(8, 3, 3, 3)
    large[0] *= 1000
    small = qdq_nets.weights(8, 8, 3, 3)
    small[:, 0] /= 1000
    proto = chain(
        node("Conv", ["x", "w1"], ["c1"]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"]),
        node("Relu", ["c2"], ["y"]),
        w1=large,
        w2=small,
    )
    built = quantizer(proto, tmp_path)
    assert ratio(proto, built.quantized()) < 15
    partly = built.quantized(["c2"])
    onnx.checker.check_model(partly, full_check=True)
    assert ratio(proto, partly) > 30
    assert operators(partly).count("QuantizeLinear") == 1, "the input alone is bytes"
    assert operators(partly).count("Relu") == 2, "the rounding did the work of the first one"


def test_activations_in_a_row_come_back(tmp_path):
    """The quantizer drops them, since the bytes of the last one have its limits."""
    proto = chain(
        node("Conv", ["x", "w1"], ["c1"]),
        node("Relu", ["c1"], ["r1"]),
        node("Clip", ["r1", "low", "high"], ["l1"]),
        node("Conv", ["l1", "w2"], ["y"]),
        low=np.float32(0.1),
        high=np.float32(0.5),
    )
    built = quantizer(proto, tmp_path)
    assert not {"Relu", "Clip"} & set(operators(built.quantized()))
    partly = built.quantized(["y"])
    assert {"Relu", "Clip"} <= set(operators(partly))
    assert ratio(proto, partly) > 30


def test_a_product_with_factors(tmp_path):
    constants = {"w": qdq_nets.weights(10, 432), "b": qdq_nets.random((10,), 1)}

    def product(**factors):
        nodes = [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w", "b"], ["y"], transB=1, **factors)]
        return qdq_nets.floating(nodes, (1, 3, 12, 12), constants)

    assert ratio(product(alpha=0.5), quantizer(product(alpha=0.5), tmp_path).quantized()) > 30
    with pytest.raises(InputError, match="no layer to quantize"):
        quantizer(product(beta=3.0), tmp_path)


def test_a_float_layer_keeps_a_weight_that_it_shares(tmp_path):
    shared = qdq_nets.weights(3, 3, 3, 3)
    nodes = [node("Conv", ["x", "w"], ["c1"]), node("Conv", ["c1", "w"], ["y"])]
    proto = qdq_nets.floating(nodes, (1, 3, 12, 12), {"w": shared})
    quantized = quantizer(proto, tmp_path).quantized(["y"])
    (layer,) = [each for each in quantized.graph.node if each.name == "y"]
    (weight,) = [tensor for tensor in quantized.graph.initializer if tensor.name == layer.input[1]]
    assert (numpy_helper.to_array(weight) == shared).all()


def test_a_result_that_a_layer_reads_is_not_rounded(tmp_path):
    nodes = [node("Conv", ["x", "w1"], ["c1"]), node("Relu", ["c1"], ["r"]), node("Conv", ["r", "w2"], ["y"])]
    proto = chain(*nodes)
    proto.graph.output.append(nets.value("r", None))
    quantized = quantizer(proto, tmp_path).quantized()
    onnx.checker.check_model(quantized, full_check=True)
    assert ratio(proto, quantized) > 30
    values = Probe(quantized, ["r"], optimized=False).run(SAMPLES[0])["r"]
    assert values.min() == 0
    assert len(np.unique(values)) > 256


def test_wrong_models(tmp_path):
    quantized = qdq_nets.quantized(qdq_nets.residual(), tmp_path)
    with pytest.raises(InputError, match="quantized already"):
        real_scales.float_network(loaded(quantized, tmp_path))
    with pytest.raises(InputError, match="no layer to quantize"):
        real_scales.float_network(loaded(chain(node("Relu", ["x"], ["y"])), tmp_path))
    with pytest.raises(InputError, match="no layer 'c9'") as caught:
        real_scales.float_network(loaded(qdq_nets.residual(), tmp_path), ["c9"])
    assert "c1" in caught.value.hint


def test_an_activation_that_is_infinite(tmp_path):
    network = real_scales.float_network(loaded(qdq_nets.residual(), tmp_path))
    sample = {"x": np.full((1, 3, 12, 12), np.inf, np.float32)}
    with pytest.raises(InputError, match="infinite or not a number"):
        real_scales.calibrate(network, [sample], "max", lambda _line: None)


def test_files_of_its_own_are_known(tmp_path):
    quantized = quantizer(qdq_nets.residual(), tmp_path).quantized()
    assert real_scales.is_ours(quantized)
    assert [entry.key for entry in quantized.metadata_props] == ["edge-toolchain.quantized"]
    assert not real_scales.is_ours(int8_nets.residual())
