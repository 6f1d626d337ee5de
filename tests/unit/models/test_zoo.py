from __future__ import annotations

import hashlib
import math
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.support import nightly
from toolchain.errors import InputError
from toolchain.models import zoo
from toolchain.models.ort import onnxruntime

# Trainable parameters as published: torchvision for resnet, r3d_18, mobilenet_v2, squeezenet1_1 and inception_v3
# (27,161,264 less the auxiliary head's 3,326,696), Gluon for v2 (less the running statistics), Keras for mobilenet.
PARAMETERS = {
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-18-v2": 11_687_854,
    "resnet-34-v2": 21_796_014,
    "resnet-50-v2": 25_549_486,
    "resnet-101-v2": 44_541_614,
    "resnet3d-18": 33_371_472,
    "mobilenet": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "squeezenet_v1.1": 1_235_496,
    "inception_v3": 23_834_568,
    "mlp": 109_386,
}

SHAPES = {
    "resnet3d-18": ([1, 3, 16, 112, 112], [1, 400]),
    "inception_v3": ([1, 3, 299, 299], [1, 1000]),
    "mlp": ([1, 1, 28, 28], [1, 10]),
}

OPERATORS = {
    *("Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Flatten", "Gemm"),
    *("GlobalAveragePool", "MaxPool", "Relu", "Softmax"),
}


LARGE = {"resnet-101", "resnet-34-v2", "resnet-50-v2", "resnet-101-v2"}  # as their smaller relatives, with more layers


@pytest.fixture(scope="module", params=[nightly.left(name) if name in LARGE else name for name in zoo.NAMES])
def network(request: pytest.FixtureRequest) -> tuple[str, onnx.ModelProto]:
    return request.param, zoo.build(request.param)


def digest(model: onnx.ModelProto) -> str:
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def python(code: str, **env: str) -> str:
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout.strip()


def lengths(value: onnx.ValueInfoProto) -> list[int]:
    return [axis.dim_value for axis in value.type.tensor_type.shape.dim]


def test_every_name_has_a_published_size():
    assert list(zoo.NAMES) == list(PARAMETERS)


def test_checker_accepts_the_model(network):
    onnx.checker.check_model(network[1], full_check=True)


def test_parameter_count(network):
    name, model = network
    counted = {"weight", "bias", "scale"}
    weights = [w for w in model.graph.initializer if w.name.rpartition(".")[2] in counted]
    assert sum(math.prod(weight.dims) for weight in weights) == PARAMETERS[name]


def test_signature(network):
    name, model = network
    expected = SHAPES.get(name, ([1, 3, 224, 224], [1, 1000]))
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["data", "prob"]
    assert (lengths(model.graph.input[0]), lengths(model.graph.output[0])) == expected


def test_operators_and_names(network):
    nodes = network[1].graph.node
    assert {node.op_type for node in nodes} <= OPERATORS
    assert len({node.name for node in nodes}) == len(nodes)
    assert all([node.name] == list(node.output) for node in nodes)


def test_output_depends_on_the_input_and_is_not_saturated(network):
    name, model = network
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    stream = np.random.default_rng(1)
    shape = lengths(model.graph.input[0])
    first, second = (session.run(["prob"], {"data": stream.standard_normal(shape, np.float32)})[0] for _ in range(2))
    assert np.isfinite(first).all()
    assert first.sum() == pytest.approx(1.0, abs=1e-4)
    assert max(first.max(), second.max()) < 0.9
    assert first.max() > 2 * first.mean(), name
    assert np.linalg.norm(first - second) > 1e-2 * np.linalg.norm(first)


def test_equal_seeds_give_equal_bytes_in_every_process():
    code = (
        "import hashlib; from toolchain.models import zoo;"
        "print(hashlib.sha256(zoo.build('mobilenet_v2', 3).SerializeToString(deterministic=True)).hexdigest())"
    )
    there = {python(code, PYTHONHASHSEED=str(seed)) for seed in (1, 2)}
    assert there == {digest(zoo.build("mobilenet_v2", 3))}


def test_another_seed_gives_other_weights():
    assert digest(zoo.build("mlp", 0)) != digest(zoo.build("mlp", 1))


def test_unknown_name():
    with pytest.raises(InputError, match="'resnet18'") as caught:
        zoo.build("resnet18")
    assert "did you mean resnet-18?" in caught.value.hint
    assert all(name in caught.value.details for name in zoo.NAMES)


def test_unknown_name_without_likeness_is_not_guessed():
    with pytest.raises(InputError) as caught:
        zoo.describe("xyzzy")
    assert "did you mean" not in caught.value.hint


@pytest.mark.parametrize("name", zoo.NAMES)
def test_description_is_one_line_with_shape_and_size(name):
    text = zoo.describe(name)
    shape = "x".join(map(str, SHAPES.get(name, ([1, 3, 224, 224],))[0]))
    assert "\n" not in text
    assert f"input {shape}, {PARAMETERS[name] / 1e6:.1f} M parameters" in text


def test_listing_imports_neither_onnx_nor_numpy():
    code = (
        "import sys; from toolchain.models import zoo; [zoo.describe(name) for name in zoo.NAMES];"
        "print({'onnx', 'numpy'} & sys.modules.keys())"
    )
    assert python(code) == "set()"
