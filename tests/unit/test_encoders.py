"""The transformers that benchmarks build without PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import _encoders
from toolchain.models.ort import onnxruntime

ROWS = 12
MODELS = {
    "bert-mini": (_encoders.bert_mini(ROWS), 256),
    "whisper-tiny-encoder": (_encoders.whisper_tiny_encoder(2 * ROWS), 384),
}


def computed(model, fed):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, fed)[0]


def given(name, seed):
    stream = np.random.default_rng(seed)
    if name == "bert-mini":
        return {"input_ids": stream.integers(0, 30522, (1, ROWS))}
    return {"features": stream.standard_normal((1, 80, 2 * ROWS), np.float32)}


@pytest.mark.parametrize("name", MODELS)
def test_each_row_of_an_encoder_depends_on_all_of_its_input(name):
    model, width = MODELS[name]
    fed = given(name, 0)
    output = computed(model, fed)
    assert output.shape == (1, ROWS, width)
    assert 0.9 < output.std() < 1.1
    (key, value), *_ = fed.items()
    changed = {key: np.concatenate([value[..., :-1], given(name, 1)[key][..., -1:]], axis=-1)}
    assert (np.abs(computed(model, changed) - output).max(axis=-1) > 1e-4).all()
