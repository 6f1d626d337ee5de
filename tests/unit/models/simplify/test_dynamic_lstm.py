"""ONNX Runtime's quantized LSTM in floats, against the LSTM that it was made of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import nets
from tests.support.nets import value
from toolchain.models import ort, reference
from toolchain.models import source as model
from toolchain.models.simplify import rewrites

STEPS, WIDTH, UNITS = 6, 5, 8


def _network(directions=1):
    stream = np.random.default_rng(0)
    weights = {
        "w": stream.standard_normal((directions, 4 * UNITS, WIDTH)).astype(np.float32),
        "r": stream.standard_normal((directions, 4 * UNITS, UNITS)).astype(np.float32),
        "b": stream.standard_normal((directions, 8 * UNITS)).astype(np.float32),
    }
    attributes = {"direction": "bidirectional"} if directions > 1 else {}
    node = onnx.helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=UNITS, **attributes)
    return nets.model([node], [value("x", (STEPS, 1, WIDTH))], [value("y", (STEPS, directions, 1, UNITS))], weights)


@pytest.fixture(params=[(1, False), (2, False), (2, True)], ids=["one direction", "two", "scales of each gate"])
def quantized(request, tmp_path):
    directions, per_channel = request.param
    nets.save(_network(directions), tmp_path, "float.onnx")
    tools = ort.quantization()
    tools.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "bytes.onnx", per_channel=per_channel)
    return model.load(str(tmp_path / "float.onnx")), model.load(str(tmp_path / "bytes.onnx"))


def test_the_reference_has_the_weights_in_floats(quantized):
    floats, of_bytes = quantized
    assert any(node.op_type == rewrites.QUANTIZED_LSTM for node in of_bytes.proto.graph.node)
    plain = reference.with_plain_lstm(of_bytes)
    assert {node.op_type for node in plain.proto.graph.node} == {"LSTM"}
    feeds = {"x": np.random.default_rng(1).standard_normal((STEPS, 1, WIDTH)).astype(np.float32)}
    exact, near, rounded = (reference.run(variant, feeds)["y"] for variant in (floats, plain, of_bytes))
    assert 0 < np.abs(near - exact).max() < 0.1
    assert np.abs(near - exact).max() < np.abs(rounded - exact).max() + 1e-2
    assert reference.tolerance(of_bytes) is None


def test_other_models_stay_as_they_are(tmp_path):
    plain = model.load(nets.save(_network(), tmp_path))
    assert reference.with_plain_lstm(plain) is plain
