"""Networks as PyTorch's exporters write them, from the ONNX file to a release that runs.

One file of each kind of network, from both exporters; `make exported` runs all files.
"""

from __future__ import annotations

import os

import onnx
import pytest

from tests.support import exported, networks
from toolchain import tensors
from toolchain.models import reference, source
from toolchain.models.request import Model

LIMIT = 1e-4
ALIVE = 10 * LIMIT
"""What two inputs must at least differ by in the outputs, for the limit to tell right from wrong."""

ALL = "TOOLCHAIN_EXPORTED" in os.environ
OF_EACH_KIND = (
    *("bert-dynamo", "gpt2-dynamo", "gru-script"),
    *("mobilenet-v3-script", "unet-script", "vit-open-script", "whisper-dynamo"),
)


@pytest.mark.parametrize("name", exported.NAMES if ALL else OF_EACH_KIND)
def test_an_exported_network_matches_onnxruntime_on_the_device(name, native, program, tmp_path):
    made, path = exported.load(name), tmp_path / f"{name}.onnx"
    onnx.save(made.proto, path)
    read = source.load(str(path), made.shapes)
    fed = [made.inputs(read.inputs, seed) for seed in range(2)]
    first, second = (reference.run(read, one) for one in fed)
    assert not tensors.compare(first, second, ALIVE).ok, "its outputs do not depend on its inputs"
    given = networks.fed(tmp_path / "inputs.npz", fed[0])
    done = networks.deployed(Model(str(path), made.shapes, given), native, program, tmp_path)
    assert done.changed
    assert done.difference.max_rel < LIMIT
