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
    network, path = exported.load(name), tmp_path / f"{name}.onnx"
    onnx.save(network.proto, path)
    read = source.load(str(path), network.shapes)
    feeds = [network.inputs(read.inputs, seed) for seed in range(2)]
    first, second = (reference.run(read, feed) for feed in feeds)
    assert not tensors.compare(first, second, ALIVE).ok, "its outputs do not depend on its inputs"
    inputs_file = networks.fed(tmp_path / "inputs.npz", feeds[0])
    deployment = networks.deployed(Model(str(path), network.shapes, inputs_file), native, program, tmp_path)
    assert deployment.changed
    assert deployment.difference.max_rel < LIMIT
