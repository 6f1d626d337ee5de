"""The `model` commands."""

from __future__ import annotations

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
