"""The `model` commands."""

from __future__ import annotations

import onnx

from tests.support.commands import done, parsed


def test_models_are_listed():
    names = [model["name"] for model in parsed("model", "list")]
    assert {"resnet-50", "mobilenet", "mlp", "resnet3d-18", "inception_v3"} <= set(names)
    assert "mobilenet" in done("model", "list").out


def test_a_model_is_inspected():
    found = parsed("model", "inspect", "squeezenet_v1.1")
    assert found["inputs"] == [
        {"name": "data", "shape": [1, 3, 224, 224], "dtype": "float32", "bound": None, "draw": None}
    ]
    assert 1.2e6 < found["parameters"] < 1.3e6
    assert 0.6 < found["gflops"] < 0.8
    assert found["operators"]["Conv"] == 26
    assert found["unsupported"] == []
    assert "0.69" in done("model", "inspect", "squeezenet_v1.1").out


def test_a_size_that_depends_on_the_data_is_open(tmp_path):
    data = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    places = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2, None])
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "places", [data], [places])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    assert "y 2x? int64" in done("model", "inspect", str(tmp_path / "net.onnx")).out
