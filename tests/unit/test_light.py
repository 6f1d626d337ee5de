from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from tests.support import light, nightly
from toolchain.models.ort import onnxruntime

pytestmark = pytest.mark.long  # networks of up to 500 MB, which only long tests use


# The others are larger; only `make networks` uses them.
NAMES = [name if name == "shufflenet" else nightly.left(name) for name in light.NAMES]


@pytest.fixture(scope="module", params=NAMES)
def network(request: pytest.FixtureRequest) -> tuple[str, onnx.ModelProto]:
    return request.param, light.load(request.param)


def probabilities(name: str, output: np.ndarray) -> np.ndarray:
    if name != "densenet121":  # the only one that ends in logits
        return output
    powers = np.exp(output - output.max())
    return powers / powers.sum()


def test_names_are_the_files_of_the_wheel():
    files = sorted(light._FOLDER.glob("light_*.onnx"))
    assert [file.stem.removeprefix("light_") for file in files] == list(light.NAMES)


def test_checker_accepts_the_model(network):
    onnx.checker.check_model(network[1], full_check=True)


def test_the_image_is_the_only_input(network):
    [image] = network[1].graph.input
    assert [axis.dim_value for axis in image.type.tensor_type.shape.dim] == [1, 3, 224, 224]


def test_no_constant_weight_is_left(network):
    graph = network[1].graph
    assert all(node.op_type != "ConstantOfShape" for node in graph.node)
    for weight in graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            values = np.frombuffer(weight.raw_data, np.float32)
            assert math.prod(weight.dims) == values.size
            assert values.std() > 0, weight.name


def test_output_depends_on_the_input_and_is_not_saturated(network):
    name, model = network
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    stream = np.random.default_rng(1)
    key = session.get_inputs()[0].name
    images = [stream.standard_normal((1, 3, 224, 224), np.float32) for _ in range(2)]
    first, second = (probabilities(name, session.run(None, {key: image})[0]) for image in images)
    assert np.isfinite(first).all()
    assert max(first.max(), second.max()) < 0.9
    assert first.max() > 2 * first.mean()
    assert np.linalg.norm(first - second) > 1e-2 * np.linalg.norm(first)


def test_seed_selects_the_weights():
    first, again, other = (light.load("squeezenet", seed).SerializeToString() for seed in (0, 0, 1))
    assert first == again
    assert first != other
