"""Int8 with real scales on a user's data: the budget, the metric, and what is refused before the work."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.support import nets, qdq_nets, shapes_data
from tests.support.nets import node
from toolchain.errors import InputError, RegressionError
from toolchain.models import source
from toolchain.pipeline import quantize as quantizing
from toolchain.pipeline.evaluate import SampleRequest
from toolchain.pipeline.quantize import QuantizeRequest
from toolchain.quantize import Settings
from toolchain.steps import Steps

SAMPLES = [{"x": qdq_nets.random((1, 3, 12, 12), seed)} for seed in range(8)]


def uneven():
    """A network whose first layer has a channel that takes the bytes of the others."""
    large, small = qdq_nets.weights(8, 3, 3, 3), qdq_nets.weights(8, 8, 3, 3, seed=1)
    large[0] *= 1000
    small[:, 0] /= 1000
    initializers = {"w1": large, "w2": small, "w3": qdq_nets.weights(8, 8, 3, 3, seed=2)}
    nodes = [
        node("Conv", ["x", "w1"], ["c1"]),
        node("Conv", ["c1", "w2"], ["c2"]),
        node("Relu", ["c2"], ["r2"]),
        node("Conv", ["r2", "w3"], ["y"]),
    ]
    return qdq_nets.floating(nodes, (1, 3, 12, 12), initializers)


def quantized(proto, folder, samples=SAMPLES, **more):
    lines = []
    request = QuantizeRequest(source.load(nets.save(proto, folder)), samples, more.pop("settings", Settings()), **more)
    return quantizing.quantize(quantizing.prepare(request, lines.append), lines.append), lines


def test_without_a_limit_all_layers_are_int8(tmp_path):
    result, lines = quantized(qdq_nets.residual(), tmp_path)
    assert [layer.name for layer in result.layers] == ["c1", "c2", "c3", "y"]
    assert (result.kept, result.limit, result.before, result.metric) == ((), "", None, None)
    assert result.output_snr_db > 25
    assert "quantizing 4 layers of net with 8 sample(s)" in lines
    assert result.document()["layers"][0] == {"name": "c1", "operator": "Conv", "noise": None}


def test_biases_are_corrected_only_if_that_helps(tmp_path, monkeypatch):
    weights = {"w": qdq_nets.weights(6, 3, 3, 3), "b": np.ones(6, np.float32)}
    proto = qdq_nets.floating([node("Conv", ["x", "w", "b"], ["y"])], (1, 3, 12, 12), weights)
    samples = [{"x": np.abs(sample["x"]) + 1} for sample in SAMPLES]
    result, _ = quantized(proto, tmp_path, samples)
    assert result.bias_correction.is_better
    assert result.document()["bias_correction"]["kept"] is True
    monkeypatch.setattr("toolchain.quantize.biases._shift", lambda *_: np.full(6, 100.0))
    other, _ = quantized(proto, tmp_path, samples)
    assert not other.bias_correction.is_better
    assert other.output_snr_db < result.output_snr_db
    assert other.output_snr_db == pytest.approx(-other.bias_correction.without_db, abs=0.1)


@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_nothing_is_rounded_within_a_gated_activation(gate, tmp_path):
    weights = {"w1": qdq_nets.weights(16, 3, 3, 3), "w2": qdq_nets.weights(16, 16, 3, 3, seed=1)}
    nodes = [
        node("Conv", ["x", "w1"], ["c"]),
        node(gate, ["c"], ["s"]),
        node("Mul", ["s", "c"], ["m"]),
        node("Conv", ["m", "w2"], ["y"]),
    ]
    result, _ = quantized(qdq_nets.floating(nodes, (1, 3, 12, 12), weights), tmp_path)
    graph = result.source.proto.graph
    rounded = {item.input[0] for item in graph.node if item.op_type == "QuantizeLinear"}
    assert {"c", "s"}.isdisjoint(rounded)
    assert "m" in rounded
    assert len(result.layers) == 2


def test_a_bias_that_several_layers_share(tmp_path):
    """ONNX Runtime's quantizer would give a copy of it the name of a layer's result."""
    weights = {"w": qdq_nets.weights(3, 3, 3, 3), "b": np.ones(3, np.float32)}
    results = ["x", "b0", "b1", "b2", "b3", "y"]
    nodes = [node("Conv", [x, "w", "b"], [y]) for x, y in itertools.pairwise(results)]
    result, _ = quantized(qdq_nets.floating(nodes, (1, 3, 12, 12), weights), tmp_path)
    assert result.output_snr_db > 20


def test_a_gate_of_another_tensor_is_rounded(tmp_path):
    weights = {"w1": qdq_nets.weights(16, 3, 3, 3), "w2": qdq_nets.weights(16, 16, 1, 1, seed=1)}
    weights["w3"] = qdq_nets.weights(16, 16, 3, 3, seed=2)
    nodes = [
        node("Conv", ["x", "w1"], ["c"]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Conv", ["p", "w2"], ["g"]),
        node("Sigmoid", ["g"], ["s"]),
        node("Mul", ["c", "s"], ["m"]),
        node("Conv", ["m", "w3"], ["y"]),
    ]
    result, _ = quantized(qdq_nets.floating(nodes, (1, 3, 12, 12), weights), tmp_path)
    rounded = {item.input[0] for item in result.source.proto.graph.node if item.op_type == "QuantizeLinear"}
    assert {"c", "s", "m"} <= rounded


def test_figures_are_of_samples_that_the_ranges_do_not_know(tmp_path):
    """Every fourth of 16 is much larger than the others: its outputs are cut off, and the figures show it."""
    large = [{"x": qdq_nets.random((1, 3, 12, 12), seed) * (20 if seed % 4 == 3 else 1)} for seed in range(16)]
    similar = [{"x": qdq_nets.random((1, 3, 12, 12), seed)} for seed in range(16)]
    (worse, _), (better, _) = (quantized(qdq_nets.residual(), tmp_path, samples) for samples in (large, similar))
    assert [(result.samples, result.judged) for result in (worse, better)] == [(12, 4), (12, 4)]
    assert worse.output_snr_db < better.output_snr_db - 15


def test_outputs_with_much_noise_are_warned_of(tmp_path):
    result, _ = quantized(uneven(), tmp_path)
    assert result.output_snr_db < 15
    assert any("--min-snr 30" in warning for warning in result.warnings)


def test_a_layer_stays_float_for_the_noise(tmp_path):
    result, _ = quantized(uneven(), tmp_path, least_snr_db=25.0)
    assert [layer.name for layer in result.kept] == ["c2"]
    assert [layer.name for layer in result.layers] == ["c1", "y"]
    assert result.output_snr_db >= 25
    assert result.before < 15
    assert result.kept[0].gives_back == pytest.approx(result.output_snr_db - result.before, abs=0.02)
    assert result.warnings == ()


def test_an_excluded_layer_stays_float(tmp_path):
    result, _ = quantized(uneven(), tmp_path, settings=Settings(exclude=("c2",)))
    assert (result.excluded, result.kept) == (("c2",), ())
    assert result.output_snr_db > 25


def test_a_limit_that_int8_cannot_keep(tmp_path):
    with pytest.raises(RegressionError, match=r"not within 90 dB if any layer is int8") as caught:
        quantized(qdq_nets.residual(), tmp_path, least_snr_db=90.0)
    assert "with all layers in int8" in caught.value.details


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Pictures in folders of classes, and a classifier whose scores pass a channel that is far too large."""
    folder = tmp_path_factory.mktemp("shapes")
    shapes_data.write(folder / "test", 25, 1)
    proto = shapes_data.classifier(shapes_data.weights(shapes_data.write(folder / "train", 40, 0)))
    return folder / "test", proto


def samples_of(folder):
    from toolchain.quantize import samples
    from toolchain.tensors import TensorSpec

    return samples.Folder(folder, [TensorSpec("x", (1, 3, shapes_data.SIZE, shapes_data.SIZE), "float32")], 16)


def spoiled(proto):
    """Add a product by a matrix after the classes: a fifth column of scores would take the bytes of the others."""
    wide, narrow = np.eye(4, 5, dtype=np.float32), np.eye(5, 4, dtype=np.float32)
    wide[0, 4], narrow[4] = 3000, 0
    spoilt = onnx.ModelProto()
    spoilt.CopyFrom(proto)
    spoilt.graph.node[-1].output[0] = "scores"
    spoilt.graph.node.extend(
        [
            onnx.helper.make_node("MatMul", ["scores", "wide"], ["fifth"], "widen"),
            onnx.helper.make_node("MatMul", ["fifth", "narrow"], ["y"], "narrow"),
        ]
    )
    spoilt.graph.initializer.extend(
        [onnx.numpy_helper.from_array(wide, "wide"), onnx.numpy_helper.from_array(narrow, "narrow")]
    )
    return spoilt


def test_a_metric_of_the_users_data(shapes, tmp_path):
    folder, proto = shapes
    result, lines = quantized(proto, tmp_path, samples_of(folder), labelled=SampleRequest(folder, "top1"))
    metric = result.metric
    assert (metric.metric, metric.unit, metric.samples) == ("top1", "points", 100)
    assert metric.loss.low <= metric.float_value - metric.int8_value <= metric.loss.high
    assert any("scoring top1 (int8)" in line for line in lines)


def test_a_layer_stays_float_for_the_metric(shapes, tmp_path):
    folder, proto = shapes
    labelled = SampleRequest(folder, "top1")
    result, _ = quantized(spoiled(proto), tmp_path, samples_of(folder), labelled=labelled, most_lost=1.0)
    assert result.before > 10
    assert [layer.name for layer in result.kept] == ["narrow"]
    assert result.kept[0].gives_back > 10
    assert result.metric.float_value - result.metric.int8_value <= 1
    assert result.limit == "a loss of 1 points of top1"
    assert result.document()["metric"]["confidence"] == 0.99


def bright_blocks():
    """A network with YOLOv8's output: a box and a score, the brightness, of each block of 4x4 pixels."""
    middles = np.stack(np.meshgrid(np.arange(8) * 4 + 2, np.arange(8) * 4 + 2), 0).reshape(1, 2, 64)
    weights = {
        "w": np.full((1, 3, 4, 4), 1 / 48, np.float32),
        "row": np.array([1, 1, 64], np.int64),
        "boxes": np.concatenate([middles, np.full((1, 2, 64), 4)], axis=1).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["mean"], strides=[4, 4]),
        node("Reshape", ["mean", "row"], ["scores"]),
        node("Concat", ["boxes", "scores"], ["y"], axis=1),
    ]
    return nets.model(nodes, [nets.value("x", (1, 3, 32, 32))], [nets.value("y", (1, 5, 64))], weights)


def draw_blocks(folder):
    """Draw pictures with a bright block each, and a COCO file of them."""
    stream, images, annotations = np.random.default_rng(0), [], []
    for number in range(12):
        left, top = (4 * stream.integers(0, 8, 2)).tolist()
        pixels = np.zeros((32, 32, 3), np.uint8)
        pixels[top : top + 4, left : left + 4] = 200
        Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png"})
        annotations.append({"id": number, "image_id": number, "category_id": 5, "bbox": [left, top, 4, 4]})
    table = {"images": images, "annotations": annotations, "categories": [{"id": 5, "name": "square"}]}
    (folder / "all.json").write_text(json.dumps(table))
    return folder / "all.json"


def test_boxes_by_the_steps_of_the_model(tmp_path):
    """Its own steps prepare the pictures and find the boxes, of the float model and of the int8 one."""
    labelled = SampleRequest(draw_blocks(tmp_path), "map")
    bright = {"x": np.random.default_rng(1).uniform(0, 1, (1, 3, 32, 32)).astype(np.float32)}
    steps = Steps(("scale=1/255", "layout=nchw"), ("yolo:head=v8,score=0.5,labels=names.txt",), ("square",))
    result, lines = quantized(bright_blocks(), tmp_path, [bright], labelled=labelled, steps=steps)
    assert (result.metric.metric, result.metric.samples) == ("map", 12)
    assert result.metric.float_value == pytest.approx(100)
    assert 90 < result.metric.int8_value <= 100
    assert any("scoring map (int8)" in line for line in lines)
    # With another threshold none of the boxes counts: the steps decide.
    strict = Steps(steps.pre, ("yolo:head=v8,score=0.9,labels=names.txt",), steps.labels)
    result, _ = quantized(bright_blocks(), tmp_path, [bright], labelled=labelled, steps=strict)
    assert (result.metric.float_value, result.metric.int8_value) == (0, 0)
    with pytest.raises(InputError, match="map needs boxes, which no step of the release finds"):
        quantized(bright_blocks(), tmp_path, [bright], labelled=labelled)


@pytest.mark.parametrize(
    ("samples", "labelled", "message"),
    [
        ([], None, "no samples"),
        (SAMPLES, SampleRequest(Path("none"), "top1"), "no data"),
        (SAMPLES, SampleRequest(Path(), "top2"), "no metric 'top2'"),
    ],
)
def test_what_is_refused_before_the_work(samples, labelled, message, shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(shapes[0])
    monkeypatch.setattr(quantizing, "calibrate", None)
    with pytest.raises(InputError, match=message):
        quantized(qdq_nets.residual(), tmp_path, samples, labelled=labelled)
