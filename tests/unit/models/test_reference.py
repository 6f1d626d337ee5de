from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import int8_nets, nets, paths, vta_nets
from tests.support.nets import node, value
from toolchain import quantize, tensors
from toolchain.errors import InputError
from toolchain.models import inputs, ranked, reference
from toolchain.models import source as model
from toolchain.models.ort import onnxruntime
from toolchain.tensors import Limit

DATA = paths.DATA / "models"


@pytest.fixture
def layer(tmp_path):
    """A fully connected layer, y = Relu(x @ w + b), that also gives the sum before its ReLU."""
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["s"]), node("Relu", ["s"], ["y"])]
    ends = [value("x", (2, 3))], [value("y", (2, 4)), value("s", (2, 4))]
    stream = np.random.default_rng(0)
    weights = {name: stream.standard_normal(shape, np.float32) for name, shape in (("w", (3, 4)), ("b", (4,)))}
    return model.load(nets.save(nets.model(nodes, *ends, weights), tmp_path)), weights


def test_agrees_with_numpy(layer):
    source, weights = layer
    feeds = inputs.random(source.inputs, 0)
    outputs = reference.run(source, feeds)
    total = feeds["x"] @ weights["w"] + weights["b"]
    assert list(outputs) == ["y", "s"]
    np.testing.assert_allclose(outputs["s"], total, rtol=1e-6)
    np.testing.assert_allclose(outputs["y"], np.maximum(total, 0), rtol=1e-6)


def test_is_reproducible():
    source = model.load("mlp")
    feeds = inputs.random(source.inputs, 0)
    first, second = (reference.run(source, feeds)["prob"] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert first.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["quantized", "float16", "external", "weights-among-inputs"])
def test_kinds_of_models(name):
    source = model.load(str(DATA / f"{name}.onnx"))
    output = reference.run(source, inputs.random(source.inputs, 0))["y"]
    assert (output.shape, output.dtype) == ((1, 4, 6, 6), source.inputs[0].dtype)
    assert np.abs(output).max() > 0


@pytest.mark.parametrize("name", ["wrong-product", "unknown-padding", "bfloat16-output"])
def test_a_model_that_it_rejects(name):
    source = model.load(str(DATA / f"{name}.onnx"))
    with pytest.raises(InputError, match=f"ONNX Runtime cannot run {name}") as caught:
        reference.run(source, inputs.random(source.inputs, 0))
    assert caught.value.details
    assert "toolchain inspect model" in caught.value.hint


@pytest.mark.parametrize(
    "feeds",
    [{}, {"x": np.zeros((9, 3), "float32")}, {"x": np.zeros((2, 3))}, {"z": np.zeros((2, 3), "float32")}],
    ids=["none", "shape", "dtype", "name"],
)
def test_inputs_that_do_not_fit(layer, feeds):
    with pytest.raises(InputError, match="ONNX Runtime cannot run"):
        reference.run(layer[0], feeds)


def _relu(opset: int, ir_version: int) -> onnx.ModelProto:
    proto = nets.model([node("Relu", ["x"], ["y"])], [value("x", (2,))], [value("y", (2,))])
    proto.opset_import[0].version, proto.ir_version = opset, ir_version
    return proto


def test_a_model_that_is_newer_than_onnxruntime(tmp_path):
    newest = onnx.defs.onnx_opset_version()
    source = model.load(nets.save(_relu(newest, onnx.IR_VERSION), tmp_path))
    assert reference.run(source, {"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, 2]


def test_the_newest_versions_are_those_of_the_installed_onnxruntime():
    opset, ir_version = reference._NEWEST_OPSET, reference._NEWEST_IR
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(_relu(opset, ir_version).SerializeToString(), options)
    for newer in (_relu(opset + 1, ir_version), _relu(opset, ir_version + 1)):
        with pytest.raises(Exception, match="support"):
            onnxruntime.InferenceSession(newer.SerializeToString(), options)


def test_the_name_says_which_version():
    assert f"onnxruntime {onnxruntime.__version__}" == reference.NAME


@pytest.mark.parametrize(("name", "limit"), [("quantized", 5e-2), ("float16", 2e-2)])
def test_a_quantized_model_has_a_tolerance_of_its_own(name, limit):
    assert reference.tolerance(model.load(str(DATA / f"{name}.onnx"))) == limit


@pytest.mark.parametrize(("level", "limit"), [(None, None), (0, None), (1, None), (4, 5e-2)])
def test_packed_weights_have_one_where_their_data_is_rounded(level, limit, tmp_path):
    initializers = {"w": np.full((4, 1, 8), 0x78, np.uint8), "s": np.ones(4, np.float32)}
    more = {} if level is None else {"accuracy_level": level}
    product = nets.node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=16, N=4, block_size=16, **more)
    proto = nets.model([product], [nets.value("x", (1, 16))], [nets.value("y", (1, 4))], initializers)
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    assert reference.tolerance(model.load(nets.save(proto, tmp_path))) == limit


@pytest.mark.parametrize(("kind", "limit"), [("FLOAT16", 2e-2), ("BFLOAT16", 1e-1), ("FLOAT", None)])
def test_an_input_that_is_converted_counts_as_what_it_becomes(kind, limit, tmp_path):
    types = onnx.TensorProto
    nodes = [
        nets.node("Cast", ["x"], ["h"], to=getattr(types, kind)),
        nets.node("AveragePool", ["h"], ["p"], kernel_shape=[2]),
        nets.node("Cast", ["p"], ["y"], to=types.FLOAT),
    ]
    proto = nets.model(nodes, [nets.value("x", (1, 1, 8))], [nets.value("y", (1, 1, 7))])
    assert reference.tolerance(model.load(nets.save(proto, tmp_path))) == limit


def test_weights_stored_in_half_precision_count_as_what_they_become(tmp_path):
    nodes = [nets.node("Cast", ["w"], ["f"], to=onnx.TensorProto.FLOAT), nets.node("MatMul", ["x", "f"], ["y"])]
    ends = [nets.value("x", (1, 2))], [nets.value("y", (1, 2))]
    proto = nets.model(nodes, *ends, {"w": np.ones((2, 2), np.float16)})
    assert reference.tolerance(model.load(nets.save(proto, tmp_path))) is None


def test_half_precision_has_a_tolerance_of_its_own(layer):
    source, _ = layer
    assert (reference.tolerance(source), reference.tolerance(source, float16=True)) == (None, 2e-2)
    assert reference.tolerance(source, bfloat16=True) == 1e-1
    assert [reference.tolerance(source, weights=kind) for kind in ("int8", "int4")] == [5e-2, 0.15]


def test_an_unoptimized_reference_has_a_name_of_its_own():
    assert reference.name() == reference.NAME
    assert reference.name(unoptimized=True) == f"{reference.NAME} without optimisations"


def test_an_unoptimized_reference_merges_nothing(tmp_path):
    """Merged operators round at other places, so a few elements are one step off."""
    source = model.load(nets.save(int8_nets.residual(size=32), tmp_path))
    quantized = quantize.quantized(source, [inputs.random(source.inputs, seed) for seed in range(3)]).source
    samples = [inputs.random(source.inputs, seed) for seed in range(3, 6)]
    exact = [reference.run(quantized, sample, unoptimized=True) for sample in samples]
    merged = [reference.run(quantized, sample) for sample in samples]
    expected = [vta_nets.reference(quantized.proto, sample["x"])[0] for sample in samples]
    assert [next(iter(outputs.values())).tobytes() for outputs in exact] == [array.tobytes() for array in expected]
    assert str(merged) != str(exact)


def test_a_quantized_network_that_the_reference_rounds_in_two_ways_has_a_wider_limit(tmp_path):
    data = {"x": np.array([[1.0, 0.5]], np.float32)}
    initializers = {"s": np.float32(0.1), "z": np.uint8(0)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    proto = nets.model(nodes, [value("x", (1, 2))], [value("y", (1, 2))], initializers)
    source = model.load(nets.save(proto, tmp_path))
    optimized = reference.run(source, data)
    assert reference.limits(source, data, optimized) == {}
    for difference, limit in ((0.02, None), (0.04, 0.09), (0.5, 0.15)):
        apart = {"y": optimized["y"] * np.float32(1 + difference)}
        limits = reference.limits(source, data, optimized, open_models=(lambda _, apart=apart: apart, dict))
        assert limits == {} if limit is None else limits["y"].value == pytest.approx(limit, rel=1e-3)


def test_a_network_that_amplifies_rounding_has_a_wider_limit(tmp_path, layer):
    feeds = inputs.random(layer[0].inputs, 0)
    assert reference.limits(layer[0], feeds, reference.run(layer[0], feeds)) == {}
    stream = np.random.default_rng(0)
    weights = {"w": stream.standard_normal((8, 4, 3, 3), np.float32)}
    weights |= {name: stream.random(8, np.float32) + 0.5 for name in ("scale", "shift", "mean", "variance")}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
    ]
    ends = [value("x", (1, 4, 8, 8))], [value("n", None)]
    plain = model.load(nets.save(nets.model(nodes, *ends, weights), tmp_path))
    feeds = inputs.random(plain.inputs, 0)
    weights["all"] = reference.run(plain, feeds, unoptimized=True)["n"]  # what is left of it is rounding alone
    nodes.append(node("Sub", ["n", "all"], ["y"]))
    amplifies = model.load(nets.save(nets.model(nodes, ends[0], [value("y", None)], weights), tmp_path))
    assert reference.limits(amplifies, feeds, reference.run(amplifies, feeds)) == {"y": Limit(5e-2, tensors.ROUNDING)}


def test_a_difference_of_large_values_has_a_limit_that_rounding_explains(tmp_path):
    """Both orders of summation agree here; the last bits of the weights do not."""
    stream = np.random.default_rng(0)
    first = stream.standard_normal((64, 8), np.float32)
    second = first * np.float32(1 + 3e-4)
    nodes = [node("MatMul", ["x", "a"], ["p"]), node("MatMul", ["x", "b"], ["q"]), node("Sub", ["p", "q"], ["y"])]
    ends = [value("x", (4, 64))], [value("y", (4, 8))]
    source = model.load(nets.save(nets.model(nodes, *ends, {"a": first, "b": second}), tmp_path))
    feeds = inputs.random(source.inputs, 0)
    outputs = reference.run(source, feeds)
    exact = feeds["x"].astype(np.float64) @ first.astype(np.float64) - feeds["x"].astype(np.float64) @ second
    difference = np.abs(outputs["y"] - exact).max() / np.abs(exact).max()
    assert difference > 1e-4
    assert difference < reference.limits(source, feeds, outputs)["y"].value < 10 * difference


def test_an_output_that_is_a_choice_widens_nothing(tmp_path):
    """One of two equal scores wins: another bit, another winner; the limit for the other output stays."""
    scores = np.tile(np.random.default_rng(0).standard_normal((16, 1), np.float32), (1, 8))
    nodes = [
        node("MatMul", ["x", "a"], ["s"]),
        node("ArgMax", ["s"], ["i"], axis=1, keepdims=0),
        node("Cast", ["i"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    ends = [value("x", (4, 16))], [value("s", (4, 8)), value("y", (4,))]
    source = model.load(nets.save(nets.model(nodes, *ends, {"a": scores}), tmp_path))
    feeds = inputs.random(source.inputs, 0)
    outputs = reference.run(source, feeds)
    assert not np.array_equal(reference.open_perturbed(source)(feeds)["y"], outputs["y"])
    assert reference.limits(source, feeds, outputs) == {}


@given(st.integers(0, 2**16), st.sampled_from([1e-3, 3e-3, 1e-2]))
def test_each_output_has_the_limit_that_rounding_explains(seed, apart):
    """One output is a sum, the other its small difference to another sum: only the difference amplifies rounding."""
    stream = np.random.default_rng(seed)
    first = stream.standard_normal((64, 8)).astype(np.float32)
    initializers = {"a": first, "b": first * np.float32(1 + apart)}
    nodes = [node("MatMul", ["x", "a"], ["p"]), node("MatMul", ["x", "b"], ["q"]), node("Sub", ["p", "q"], ["y"])]
    proto = nets.model(nodes, [value("x", (4, 64))], [value("p", (4, 8)), value("y", (4, 8))], initializers)
    with tempfile.TemporaryDirectory() as folder:
        source = model.load(nets.save(proto, Path(folder)))
    feeds = {"x": stream.standard_normal((4, 64)).astype(np.float32)}
    outputs = reference.run(source, feeds)
    limits = reference.limits(source, feeds, outputs)
    assert set(limits) <= {"y"}
    exact = {name: feeds["x"].astype(np.float64) @ initializers[name].astype(np.float64) for name in ("a", "b")}
    right = {"p": exact["a"].astype(np.float32), "y": (exact["a"] - exact["b"]).astype(np.float32)}
    assert tensors.compare(right, outputs, limits).ok
    limit = tensors.limit_of(limits, "y", "float32").value
    assert limit <= max(1e-4, 64 * np.finfo(np.float32).eps / apart)  # what is lost by the difference, a few times
    for name, fault in (("p", 2e-4), ("y", 2 * limit)):
        wrong = {key: array.copy() for key, array in outputs.items()}
        wrong[name].flat[5] += np.float32(fault * np.abs(wrong[name]).max())
        comparison = tensors.compare(wrong, outputs, limits)
        assert (comparison.ok, [output.name for output in comparison.outputs if not output.ok]) == (False, [name])
        assert comparison.tolerance == tensors.limit_of(limits, name, "float32").value


def test_rows_in_another_order_widen_nothing(tmp_path):
    """Scores that are equal but for their last bits: rows change places, and the values are as near as ever."""
    stream = np.random.default_rng(0)
    initializers = {
        "w": np.tile(stream.standard_normal((16, 1), np.float32), (1, 8)),
        "k": np.array([8]),
        "t": np.arange(8.0),
    }
    initializers["t"] = (1 + 0.03 * stream.random((8,))).astype(np.float32)
    nodes = [
        node("MatMul", ["x", "w"], ["s"]),
        node("TopK", ["s", "k"], ["v", "i"], axis=1),
        node("Gather", ["t", "i"], ["y"]),
    ]
    source = model.load(
        nets.save(
            nets.model(nodes, [value("x", (1, 16))], [value("v", (1, 8)), value("y", (1, 8))], initializers), tmp_path
        )
    )
    feeds = inputs.random(source.inputs, 0)
    outputs = reference.run(source, feeds)
    assert not np.array_equal(reference.open_perturbed(source)(feeds)["y"], outputs["y"])
    assert set(reference.limits(source, feeds, outputs)) == {"y"}
    assert reference.limits(source, feeds, outputs, ranked.rankings(source, feeds, None)) == {}


@pytest.mark.filterwarnings("error")
def test_each_input_becomes_one_of_its_two_neighbours(tmp_path):
    kind = np.finfo(np.float32)
    special = [0.0, -0.0, 1.0, -1.0, kind.tiny, -kind.smallest_subnormal, kind.max, kind.min, np.inf, -np.inf, np.nan]
    numbers = np.tile(np.array(special, np.float32), 64)
    ends = [value("x", numbers.shape)], [value("y", numbers.shape)]
    source = model.load(nets.save(nets.model([node("Identity", ["x"], ["y"])], *ends), tmp_path))
    near = reference.open_perturbed(source)({"x": numbers})["y"]
    stays = (numbers == 0) | ~(np.abs(numbers) < kind.max)
    np.testing.assert_array_equal(near[stays], numbers[stays])
    moved, numbers = near[~stays], numbers[~stays]
    with np.errstate(under="ignore"):
        up, down = (np.nextafter(numbers, np.float32(end)) for end in (np.inf, -np.inf))
    assert (moved == up).any()
    assert (moved == down).any()
    assert ((moved == up) | (moved == down)).all()


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_are_masks_and_stay(tmp_path):
    """A row whose scores are all masked by the lowest number has equal shares, where infinity would give no number."""
    nodes = [node("Add", ["x", "mask"], ["s"]), node("Softmax", ["s"], ["y"], axis=1)]
    mask = np.full((2, 8), np.finfo(np.float32).min)
    source = model.load(
        nets.save(nets.model(nodes, [value("x", (2, 8))], [value("y", (2, 8))], {"mask": mask}), tmp_path)
    )
    outputs = reference.open_perturbed(source)(inputs.random(source.inputs, 0))
    np.testing.assert_array_equal(outputs["y"], np.float32(1 / 8))
