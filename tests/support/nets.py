"""Small ONNX models made by hand: what the tests of the model side share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.models.ort import onnxruntime

node = helper.make_node


def value(name: str, shape: Sequence[int | str] | None, dtype: str = "float32") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    return helper.make_graph(nodes, "graph", inputs, outputs, tensors)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    built = graph(nodes, inputs, outputs, weights)
    return helper.make_model(built, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def relu(shape: Sequence[int | str] = (2, 3), dtype: str = "float32") -> onnx.ModelProto:
    """Return the smallest model that computes something: y = Relu(x)."""
    return model([node("Relu", ["x"], ["y"], name="relu")], [value("x", shape, dtype)], [value("y", shape, dtype)])


def cached_step() -> onnx.ModelProto:
    """Return a step of a decoder: what is new is appended to the cache; the mask covers all of it."""
    nodes = [
        node("Concat", ["past", "x"], ["present"], axis=2),
        node("Unsqueeze", ["mask", "axes"], ["column"]),
        node("Mul", ["present", "column"], ["masked"]),
        node("ReduceSum", ["masked", "rows"], ["y"], keepdims=0),
    ]
    inputs = [
        value("past", ("batch", 2, "past", 4)),
        value("x", ("batch", 2, "new", 4)),
        value("mask", ("batch", "past + new")),
    ]
    outputs = [value("present", ("batch", 2, "past + new", 4)), value("y", ("batch", 2, 4))]
    return model(nodes, inputs, outputs, {"axes": np.array([1, 3]), "rows": np.array([2])})


def save(proto: onnx.ModelProto, folder: Path, name: str = "net.onnx") -> str:
    onnx.save(proto, folder / name)
    return str(folder / name)


def outputs(path: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a model's file by name, as ONNX Runtime computes them."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(arrays)), strict=True))


def assert_near(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Compare outputs by name: their shapes, and their numbers within 1e-5 of the largest."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert np.abs(found[name] - value).max() <= 1e-5 * np.abs(value).max(), name


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))
