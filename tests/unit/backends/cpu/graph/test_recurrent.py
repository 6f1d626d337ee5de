from __future__ import annotations

import numpy as np

from tests.support import cpu_kernels
from tests.support.one_node import One, model
from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.base import LAYER
from toolchain.models import importer, source


def lowered(tmp_path, inputs=1, without=(), dtype=np.float32):
    weights = [cpu_kernels.random(shape).astype(dtype) for shape in ((3, 1, 4), (1, 16, 4), (1, 16, 4))]
    proto, _ = model([One("LSTM", weights, {"hidden_size": 4}, inputs)], 14)
    path = tmp_path / "lstm.onnx"
    path.write_bytes(proto.SerializeToString())
    imported = importer.import_model(source.load(str(path)))
    module = backend_of(board.load("local").resolved(), without=without).lower(imported.module)
    return [str(item.attrs[LAYER]) for _, item in module.functions_items() if item.attrs and LAYER in item.attrs]


def test_a_recurrence_is_a_layer_that_can_be_tuned(tmp_path):
    assert any('"kind":"recurrence"' in layer for layer in lowered(tmp_path))


def test_what_the_template_does_not_compute_keeps_its_kernel(tmp_path):
    for more in ({"inputs": 3}, {"without": ("recurrent",)}, {"dtype": np.float64}):
        assert not any('"kind":"recurrence"' in layer for layer in lowered(tmp_path, **more))
