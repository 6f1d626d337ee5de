"""The `inspect` commands; tests/integration/test_mali_cost.py has those of kernels."""

from __future__ import annotations

import json

import onnx

from tests.support.commands import done, parsed, toolchain
from toolchain import bundle


def test_a_package_shows_its_parts(tiny, tmp_path):
    bundle.pack(tiny, tmp_path / "tiny.tar")
    for package in (tiny.folder, tmp_path / "tiny.tar"):
        lines = done("inspect", "package", package).out.splitlines()
        assert lines[0].split() == ["NAME", "VERSION", "KIND", "USED", "FOR"]
        assert any(line.startswith("model.so ") and line.endswith("runtime") for line in lines)
        assert any(line.startswith("onnxruntime ") and line.endswith("build only") for line in lines)
    assert parsed("inspect", "package", tiny.folder) == json.loads((tiny.folder / bundle.BILL).read_text())
    statement = (tiny.folder / bundle.PROVENANCE).read_text()
    assert parsed("inspect", "package", tiny.folder, "--provenance") == json.loads(statement)
    assert json.loads(done("inspect", "package", tiny.folder, "--provenance").out) == json.loads(statement)


def test_what_is_no_package_is_told(tmp_path):
    result = toolchain("inspect", "package", tmp_path)
    assert (result.code, "is not a bundle" in result.err) == (2, True)


def test_a_model_is_inspected():
    description = parsed("inspect", "model", "squeezenet_v1.1")
    assert description["inputs"] == [
        {"name": "data", "shape": [1, 3, 224, 224], "dtype": "float32", "bound": None, "draw": None}
    ]
    assert 1.2e6 < description["parameters"] < 1.3e6
    assert 0.6 < description["gflops"] < 0.8
    assert description["operators"]["Conv"] == 26
    assert description["unsupported"] == []
    assert "0.69" in done("inspect", "model", "squeezenet_v1.1").out


def test_a_size_that_depends_on_the_data_is_open(tmp_path):
    data = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    value_info = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2, None])
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "places", [data], [value_info])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    assert "y 2x? int64" in done("inspect", "model", str(tmp_path / "net.onnx")).out
