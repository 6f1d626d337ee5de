from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import nets
from tests.support.nets import node, value
from toolchain.models import protos


def with_weights() -> onnx.ModelProto:
    """Return a matrix product whose result is split and reshaped as constants say."""
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("Split", ["product", "parts"], ["left", "right"], axis=1),
        node("Reshape", ["left", "sizes"], ["y"]),
    ]
    weights = {
        "w": np.ones((200, 128), np.float32),
        "parts": np.array([32, 96]),
        "sizes": np.array([2, -1]),
    }
    return nets.model(nodes, [value("x", (4, 200))], [value("y", ("rows", "columns")), value("right", None)], weights)


def test_shapes_are_inferred_without_the_data_of_large_weights():
    proto = with_weights()
    light = protos.without_weights(proto)
    assert light.ByteSize() < 1000
    inferred, expected = (onnx.shape_inference.infer_shapes(model, data_prop=True).graph for model in (light, proto))
    for field in ("input", "value_info", "output"):
        assert list(getattr(inferred, field)) == list(getattr(expected, field)), field
    assert [dim.dim_value for dim in inferred.output[0].type.tensor_type.shape.dim] == [2, 64]


def test_a_model_without_weights_keeps_their_names_shapes_and_types():
    proto = with_weights()
    before = protos.clone(proto)
    light = protos.without_weights(proto)
    described, expected = (
        [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in model.graph.initializer]
        for model in (light, proto)
    )
    assert described == expected
    assert proto == before


def test_a_model_without_large_weights_is_the_same():
    proto = nets.cached_step()
    light = protos.without_weights(proto)
    assert light.graph == proto.graph
    assert light.opset_import == proto.opset_import
    assert light.ir_version == proto.ir_version


def test_weights_that_were_left_out_are_put_back():
    proto = with_weights()
    light = protos.without_weights(proto)
    protos.restore_weights(light, proto)
    assert light.graph.initializer == proto.graph.initializer


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_the_data_of_a_constant_is_counted_by_its_shape(dtype):
    tensor = numpy_helper.from_array(np.zeros((3, 5), dtype), "w")
    assert protos.data_bytes(tensor) == len(tensor.raw_data)


def test_constants_of_texts_and_of_unknown_types_are_measured_as_written():
    texts = onnx.helper.make_tensor("t", onnx.TensorProto.STRING, [2], [b"x" * 40000] * 2)
    assert protos.is_large(texts)
    assert not protos.is_large(onnx.TensorProto(name="u", data_type=99, dims=[1 << 40]))
