from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests import nets
from tests.nets import node, value
from tests.unit import int8_nets, vta_nets
from toolchain import inputs, model, quantize, reference
from toolchain.errors import InputError

DATA = Path(__file__).parents[1] / "data" / "models"


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
    fed = inputs.random(source.inputs, 0)
    found = reference.run(source, fed)
    total = fed["x"] @ weights["w"] + weights["b"]
    assert list(found) == ["y", "s"]
    np.testing.assert_allclose(found["s"], total, rtol=1e-6)
    np.testing.assert_allclose(found["y"], np.maximum(total, 0), rtol=1e-6)


def test_is_reproducible():
    source = model.load("mlp")
    fed = inputs.random(source.inputs, 0)
    first, second = (reference.run(source, fed)["prob"] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert first.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["quantized", "float16", "external", "weights-among-inputs"])
def test_kinds_of_models(name):
    source = model.load(str(DATA / f"{name}.onnx"))
    found = reference.run(source, inputs.random(source.inputs, 0))["y"]
    assert (found.shape, found.dtype) == ((1, 4, 6, 6), source.inputs[0].dtype)
    assert np.abs(found).max() > 0


@pytest.mark.parametrize("name", ["wrong-product", "unknown-padding", "bfloat16-output"])
def test_a_model_that_it_rejects(name):
    source = model.load(str(DATA / f"{name}.onnx"))
    with pytest.raises(InputError, match=f"ONNX Runtime cannot run {name}") as caught:
        reference.run(source, inputs.random(source.inputs, 0))
    assert caught.value.details
    assert "toolchain model inspect" in caught.value.hint


@pytest.mark.parametrize(
    "fed",
    [{}, {"x": np.zeros((9, 3), "float32")}, {"x": np.zeros((2, 3))}, {"z": np.zeros((2, 3), "float32")}],
    ids=["none", "shape", "dtype", "name"],
)
def test_inputs_that_do_not_fit(layer, fed):
    with pytest.raises(InputError, match="ONNX Runtime cannot run"):
        reference.run(layer[0], fed)


def test_the_name_says_which_version():
    assert f"onnxruntime {onnxruntime.__version__}" == reference.NAME


@pytest.mark.parametrize(("name", "limit"), [("quantized", 5e-2), ("float16", None)])
def test_a_quantized_model_has_a_tolerance_of_its_own(name, limit):
    assert reference.tolerance(model.load(str(DATA / f"{name}.onnx"))) == limit


def test_half_precision_has_a_tolerance_of_its_own(layer):
    source, _ = layer
    assert (reference.tolerance(source), reference.tolerance(source, float16=True)) == (None, 2e-2)


def test_to_the_letter_it_is_named_so():
    assert reference.name() == reference.NAME
    assert reference.name(to_the_letter=True) == f"{reference.NAME} without optimisations"


def test_to_the_letter_nothing_is_merged(tmp_path):
    """What is merged rounds at other places, and is one step off here and there."""
    source = model.load(nets.save(int8_nets.residual(size=32), tmp_path))
    made = quantize.quantized(source, [inputs.random(source.inputs, seed) for seed in range(3)]).source
    fed = [inputs.random(source.inputs, seed) for seed in range(3, 6)]
    exact = [reference.run(made, one, to_the_letter=True) for one in fed]
    merged = [reference.run(made, one) for one in fed]
    wanted = [vta_nets.reference(made.proto, one["x"])[0] for one in fed]
    assert [next(iter(one.values())).tobytes() for one in exact] == [one.tobytes() for one in wanted]
    assert str(merged) != str(exact)
