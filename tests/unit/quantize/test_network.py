"""Quantized networks: what their form is, what hardware makes of them, and what is refused."""

from __future__ import annotations

import collections
import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import int8_nets, nets, qdq_nets
from tests.support.nets import node
from toolchain import quantize
from toolchain.errors import InputError
from toolchain.models import importer, reference
from toolchain.models import source as model
from toolchain.models.ort import onnxruntime
from toolchain.quantize import Settings
from toolchain.quantize.calibrate import Probe
from toolchain.quantize.samples import random

LEVELS = onnxruntime.GraphOptimizationLevel


def loaded(proto, folder, name="net.onnx"):
    return model.load(nets.save(proto, folder, name))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return loaded(int8_nets.residual(size=32), tmp_path_factory.mktemp("nets"))


@pytest.fixture(scope="module")
def samples(source):
    return random(source.inputs, 8)


@pytest.fixture(scope="module")
def result(source, samples):
    return quantize.quantized(source, samples)


def bytes_of(proto, feeds, level):
    """Run a network and return what its QuantizeLinear nodes make, by name."""
    names = [node.output[0] for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    probed = onnx.ModelProto()
    probed.CopyFrom(proto)
    probed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(probed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def by_output(proto):
    return {name: node for node in proto.graph.node for name in node.output}


def weights_of(proto):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


# --- what hardware computes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_integers_give_what_onnxruntime_gives_bit_for_bit(seed, tmp_path):
    source = loaded(int8_nets.residual(size=32, seed=10 * seed), tmp_path)
    proto = quantize.quantized(source, random(source.inputs, 3, seed)).source.proto
    for feeds in random(source.inputs, 5, 100 + seed):
        rounded = bytes_of(proto, feeds, LEVELS.ORT_DISABLE_ALL)
        computed = int8_nets.evaluate(proto, feeds)
        for name, expected in rounded.items():
            np.testing.assert_array_equal(computed[name], expected, err_msg=name)


def test_ties_are_there_to_be_broken(result, samples):
    """Without the quarter in the biases, halves would be rounded to even, and hardware would differ."""
    proto = onnx.ModelProto()
    proto.CopyFrom(result.source.proto)
    layers = {layer.name: layer for layer in result.layers}
    for operation in proto.graph.node:
        if operation.name in layers:
            layer = layers[operation.name]
            scale = weights_of(proto)[by_output(proto)[operation.input[1]].input[1]]
            unit = 2.0**layer.input_exponent * scale
            tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == operation.input[2])
            floored = np.floor(numpy_helper.to_array(tensor) / unit) * unit
            tensor.CopyFrom(numpy_helper.from_array(floored.astype(np.float32), tensor.name))
    differences = 0
    for feeds in samples:
        rounded = bytes_of(proto, feeds, LEVELS.ORT_DISABLE_ALL)
        computed = int8_nets.evaluate(proto, feeds, rounded)
        steps = [np.abs(computed[name] - expected) for name, expected in rounded.items()]
        assert max(step.max() for step in steps) <= 1
        differences += sum(np.count_nonzero(step) for step in steps)
    assert differences


def test_default_optimizations_are_at_most_one_step_off_in_a_layer(result, samples):
    proto = result.source.proto
    for feeds in samples:
        rounded = bytes_of(proto, feeds, LEVELS.ORT_ENABLE_ALL)
        computed = int8_nets.evaluate(proto, feeds, rounded)
        assert max(np.abs(computed[name] - expected).max() for name, expected in rounded.items()) <= 1


def test_hardware_has_every_shift(result):
    assert all(0 <= min(layer.shifts) <= max(layer.shifts) <= 30 for layer in result.layers)
    residual = {layer.name: layer.residual_shift for layer in result.layers}
    assert {name for name, shift in residual.items() if shift is not None} == {"second", "fourth"}
    assert all(0 <= shift <= 15 for shift in residual.values() if shift is not None)


def test_channels_that_differ_keep_their_weights(tmp_path):
    """As those of trained networks do: with one scale, the small ones would be all zeros."""
    weight = qdq_nets.weights(8, 8, 3, 3) * np.float32(2.0) ** -np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1)
    nodes = [node("Conv", ["x", "w"], ["y"], "apart", pads=[1, 1, 1, 1])]
    source = loaded(qdq_nets.floating(nodes, (1, 8, 6, 6), {"w": weight}), tmp_path)
    result = quantize.quantized(source, random(source.inputs, 4))
    (layer,) = result.layers
    assert layer.weight_exponents[1] - layer.weight_exponents[0] >= 6
    assert layer.shifts[1] - layer.shifts[0] == layer.weight_exponents[1] - layer.weight_exponents[0]
    assert quantize.is_quantized(result.source)
    for feeds in random(source.inputs, 3, 40):
        rounded = bytes_of(result.source.proto, feeds, LEVELS.ORT_DISABLE_ALL)
        computed = int8_nets.evaluate(result.source.proto, feeds)
        for name, expected in rounded.items():
            np.testing.assert_array_equal(computed[name], expected, err_msg=name)


def test_a_bias_too_large_for_a_quarter_is_told(tmp_path):
    proto = int8_nets.residual()
    for tensor in proto.graph.initializer:
        if tensor.name == "b2":
            bias = numpy_helper.to_array(tensor).copy()
            bias[0] = -1e6
            tensor.CopyFrom(numpy_helper.from_array(bias, "b2"))
    source = loaded(proto, tmp_path)
    result = quantize.quantized(source, random(source.inputs, 8))
    assert [layer.name for layer in result.layers if not layer.exact] == ["second"]
    assert any("second" in warning for warning in result.warnings)


# --- the form --------------------------------------------------------------------------------------------------


def test_onnx_accepts_it_and_its_signature_stays(result, source):
    onnx.checker.check_model(result.source.proto, full_check=True)
    assert (result.source.name, result.source.origin) == (source.name, source.origin)
    assert (result.source.inputs, result.source.output_names) == (source.inputs, source.output_names)
    assert result.source.sha256 != source.sha256


def test_scales_are_powers_of_two_and_zero_points_those_of_activations_alone(result):
    assert quantize.is_quantized(result.source)
    weights = weights_of(result.source.proto)
    pairs = [node for node in result.source.proto.graph.node if node.op_type.endswith("tizeLinear")]
    for operation in pairs:
        scale, zero = (weights[name] for name in operation.input[1:])
        assert (np.frexp(scale)[0] == 0.5).all()
        assert (zero.dtype, zero.shape) == (np.int8, scale.shape)
        assert operation.input[0] not in weights or not zero.any()
        assert scale.shape == () or operation.input[0] in weights


def test_results_of_a_relu_use_all_bytes(result):
    zeros = {layer.name: (layer.input_zero, layer.output_zero) for layer in result.layers}
    assert zeros == {
        "stem": (0, -128),
        "first": (-128, -128),
        "second": (-128, -128),
        "shortcut": (-128, 0),
        "third": (-128, -128),
        "fourth": (-128, 0),
    }


def test_convolutions_read_and_write_bytes(result):
    makers = by_output(result.source.proto)
    readers = collections.defaultdict(list)
    for operation in result.source.proto.graph.node:
        for name in operation.input:
            readers[name].append(operation)
    weights = weights_of(result.source.proto)
    quantized = {
        node.name: node for node in result.source.proto.graph.node if node.op_type == "Conv" and node.name != "stem"
    }
    assert set(quantized) == {"first", "second", "shortcut", "third", "fourth"}
    for conv in quantized.values():
        assert [makers[name].op_type for name in conv.input[:2]] == ["DequantizeLinear"] * 2
        assert weights[makers[conv.input[1]].input[0]].dtype == np.int8
        assert weights[conv.input[2]].dtype == np.float32
    ends = {name: chain(readers, conv.output[0]) for name, conv in quantized.items()}
    assert ends == {
        "first": ["Clip", "QuantizeLinear"],
        "second": ["Add", "Relu", "QuantizeLinear"],
        "shortcut": ["QuantizeLinear"],
        "third": ["Relu", "QuantizeLinear"],
        "fourth": ["Add", "QuantizeLinear"],
    }


def chain(readers, name):
    """Name what follows a tensor up to where it is rounded."""
    (reader,) = readers[name]
    after = [] if reader.op_type == "QuantizeLinear" else chain(readers, reader.output[0])
    return [reader.op_type, *after]


def test_a_tensor_has_one_pair_for_all_its_readers(result):
    counts = collections.Counter(node.op_type for node in result.source.proto.graph.node)
    assert counts["QuantizeLinear"] == 8  # x, the stem's, p0, r1, c3, r3, r4, a5
    assert counts["DequantizeLinear"] == 8 + 6


def test_a_result_keeps_its_name_and_carries_what_was_rounded(tmp_path):
    proto = int8_nets.residual()
    proto.graph.output.append(nets.value("a5", (1, 12, 3, 3)))
    source = loaded(proto, tmp_path)
    result = quantize.quantized(source, random(source.inputs, 2))
    onnx.checker.check_model(result.source.proto, full_check=True)
    assert by_output(result.source.proto)["a5"].op_type == "DequantizeLinear"
    assert result.top1_agreement is None  # of two results, neither is the one


def test_it_is_the_same_each_time(source, samples, result):
    before = source.proto.SerializeToString()
    again = quantize.quantized(source, samples)
    assert source.proto.SerializeToString() == before
    assert again.source.proto.SerializeToString() == result.source.proto.SerializeToString()
    assert again.document() == result.document()


def test_tvm_imports_it(result):
    imported = importer.import_model(result.source)
    assert [spec.shape for spec in imported.outputs] == [(1, 10)]


# --- accuracy --------------------------------------------------------------------------------------------------


def test_a_trained_network_keeps_its_answers(tmp_path):
    source = loaded(int8_nets.trained(), tmp_path)
    calibration = [{"x": picture[None]} for picture in int8_nets.gratings(32, 24, seed=2)[0]]
    result = quantize.quantized(source, calibration)
    assert not result.warnings
    assert result.output_snr_db > 15
    pictures, classes = int8_nets.gratings(200, 24, seed=3)
    exact, rounded = (
        np.array([probe.run({"x": picture[None]})["y"].argmax() for picture in pictures])
        for probe in (Probe(source.proto, ["y"]), Probe(result.source.proto, ["y"], optimized=False))
    )
    assert np.mean(exact == classes) > 0.85
    assert np.mean(rounded == classes) > np.mean(exact == classes) - 0.05
    assert np.mean(exact == rounded) > 0.9


def test_the_worst_layer_comes_first(result):
    ratios = [layer.snr_db for layer in result.layers]
    assert ratios == sorted(ratios)
    assert 20 < ratios[0] < ratios[-1] < 60
    assert 0 <= result.top1_agreement <= 1


def test_the_report_is_json(result):
    document = json.loads(json.dumps(result.document()))
    assert document["layers"][0]["snr_db"] == result.layers[0].snr_db
    assert (document["samples"], document["left"], document["sha256"]) == (8, [], result.source.sha256)


@pytest.mark.parametrize(
    ("settings", "count", "message"),
    [(Settings(), 8, ""), (Settings(), 7, "few"), (Settings(random=True), 8, "random")],
)
def test_figures_of_little_worth_come_with_a_warning(source, settings, count, message):
    warnings = quantize.quantized(source, random(source.inputs, count), settings).warnings
    assert [message in warning for warning in warnings] == ([True] if message else [])


@pytest.mark.parametrize("method", quantize.METHODS)
def test_methods_are_all_usable(source, samples, method):
    result = quantize.quantized(source, samples, Settings(method))
    assert result.method == method
    assert result.output_snr_db > 10


# --- other models ----------------------------------------------------------------------------------------------


def test_what_is_quantized_stays_as_it_is(result):
    again = quantize.quantized(result.source, [])
    assert again.unchanged
    assert again.source is result.source


@pytest.mark.parametrize("activation", ["uint8", "int8"])
def test_another_quantization_is_taken_back(tmp_path, activation):
    other = loaded(qdq_nets.quantized(qdq_nets.residual(), tmp_path, activation), tmp_path)
    assert not quantize.is_quantized(other)
    result = quantize.quantized(other, random(other.inputs, 8))
    assert result.refitted
    assert quantize.is_quantized(result.source)
    assert len(result.layers) == 3
    (feeds,) = random(other.inputs, 1, 50)
    # Optimized, ONNX Runtime limits sums of two products to 16 bits on processors without VNNI.
    exact, rounded = (
        next(iter(reference.run(source, feeds, unoptimized=True).values())) for source in (other, result.source)
    )
    assert np.square(exact - rounded).sum() < 0.03 * np.square(exact).sum()


def test_a_model_of_an_old_opset_is_raised(tmp_path):
    proto = int8_nets.residual()
    proto.opset_import[0].version = 11
    source = loaded(proto, tmp_path)
    result = quantize.quantized(source, random(source.inputs, 2))
    assert result.source.proto.opset_import[0].version >= 13
    onnx.checker.check_model(result.source.proto, full_check=True)


def test_a_convolution_can_be_left_out(source, samples):
    result = quantize.quantized(source, samples, Settings(exclude=("third",)))
    assert result.left == ("third",)
    assert "third" not in {layer.name for layer in result.layers}


# --- what is refused -------------------------------------------------------------------------------------------


def test_an_unknown_name_is_not_excluded_silently(source, samples):
    with pytest.raises(InputError, match="no convolution 'thrid'") as fault:
        quantize.quantized(source, samples, Settings(exclude=("thrid",)))
    assert "third" in fault.value.hint


def test_a_model_without_convolutions_is_refused(tmp_path):
    source = loaded(nets.relu(), tmp_path)
    with pytest.raises(InputError, match="no convolution to quantize"):
        quantize.quantized(source, random(source.inputs, 1))


def test_what_would_be_quantized(tmp_path, source, result):
    assert set(quantize.quantizable(source)) == {layer.name for layer in result.layers}
    assert quantize.quantizable(loaded(nets.relu(), tmp_path)) == ()


def test_samples_are_needed(source):
    with pytest.raises(InputError, match="no samples"):
        quantize.quantized(source, [])


def test_activations_must_be_finite(source):
    samples = random(source.inputs, 2)
    samples[1]["x"][0, 0, 0, 0] = np.inf
    with pytest.raises(InputError, match="sample 1"):
        quantize.quantized(source, samples)


def test_ranges_of_a_file_are_kept_and_its_own_results_compared(tmp_path):
    other = loaded(qdq_nets.quantized(qdq_nets.residual(), tmp_path, "uint8"), tmp_path)
    noise = [{"x": np.full((1, 3, 12, 12), 1e-3, np.float32)}] * 2  # which would say that all is small
    result = quantize.quantized(other, noise, Settings(random=True))
    assert result.method == "file"
    wide = quantize.quantized(other, random(other.inputs, 8), Settings("max"))
    limits = {layer.name: layer.output_exponent for layer in wide.layers}
    assert all(limits[layer.name] - 1 <= layer.output_exponent <= limits[layer.name] for layer in result.layers)
    small = quantize.quantized(other, noise)  # data of the user's own, with which the ends are never reached
    assert small.method == "file"
    assert all(limits[layer.name] > layer.output_exponent for layer in small.layers)
    same = quantize.quantized(other, random(other.inputs, 8), Settings(random=True))
    assert same.source.sha256 == result.source.sha256
    assert any("those of the file" in warning for warning in same.warnings)
    assert same.output_snr_db > 15


@pytest.mark.parametrize("activation", ["uint8", "int8"])
def test_operators_on_bytes_are_taken_back_too(tmp_path, activation):
    """ONNX Runtime's other form: QLinearConv, QLinearAdd, QLinearGlobalAveragePool, QGemm."""
    form = qdq_nets.quantization.QuantFormat
    plain, on_bytes = (
        loaded(
            qdq_nets.quantized(qdq_nets.residual(), tmp_path, activation, quant_format=quant_format),
            tmp_path,
            f"{quant_format}.onnx",
        )
        for quant_format in (form.QDQ, form.QOperator)
    )
    assert "QLinearConv" in {node.op_type for node in on_bytes.proto.graph.node}
    from_pairs, from_operators = (
        quantize.quantized(source, random(source.inputs, 8), Settings(random=True)) for source in (plain, on_bytes)
    )
    assert from_operators.method == "file"
    assert len(from_operators.layers) == len(from_pairs.layers)
    assert sorted(layer.output_exponent for layer in from_operators.layers) == sorted(
        layer.output_exponent for layer in from_pairs.layers
    )
    assert from_operators.output_snr_db > 15


def test_a_model_on_floats_has_no_ranges(source, samples):
    assert not quantize.has_ranges(source)
    with pytest.raises(InputError, match="without quantization ranges") as fault:
        quantize.quantized(source, samples, Settings("file"))
    assert "mse" in fault.value.hint


@pytest.mark.parametrize("operator", ["DynamicQuantizeLinear", "QLinearConv"])
def test_integer_operators_are_named(tmp_path, operator):
    count = {"DynamicQuantizeLinear": (1, 3), "QLinearConv": (8, 1)}[operator]
    odd = node(operator, ["x"] * count[0], [f"q{index}" for index in range(count[1])], "odd")
    source = loaded(int8_nets.residual(), tmp_path)
    source.proto.graph.node.append(odd)
    with pytest.raises(InputError, match="compute with integers") as fault:
        quantize.quantized(source, random(source.inputs, 1))
    assert f"{operator} 'odd'" in fault.value.details


def test_a_model_that_does_not_run_is_refused(source, samples):
    samples = [{"x": samples[0]["x"][:, :2]}]
    with pytest.raises(InputError, match="ONNX Runtime cannot run"):
        quantize.quantized(source, samples)


def test_it_tells_what_it_does(source, samples):
    lines = []
    quantize.quantized(source, samples, say=lines.append)
    assert lines[0] == "quantizing 6 convolutions of net with 8 sample(s)"
