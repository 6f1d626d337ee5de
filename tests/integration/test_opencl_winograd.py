"""Winograd's convolution and padded first images on OpenCL devices, against double precision."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, nightly, opencl, opencl_campaign, opencl_runtimes
from tests.support.nets import node, value
from tests.support.opencl_runtimes import INTEL, OCLGRIND, POCL, Checks
from toolchain.backends.cpu.kernels.winograd import algebra
from toolchain.backends.mali import winograd
from toolchain.backends.mali.winograd.tiling import INPUTS, OUTPUTS

SECONDS = 500
LIMIT = 5e-6
"""Of the difference to ONNX Runtime, which rounds, too."""

# Batch, channels in, height, width, channels out, padding.
SHAPES = {
    "whole": (1, 8, 12, 8, 16, (1, 1, 1, 1)),
    "odd": (2, 8, 7, 9, 12, (1, 1, 1, 1)),
    "no padding": (1, 12, 5, 6, 8, (0, 0, 0, 0)),
    "uneven padding": (3, 8, 11, 6, 12, (2, 0, 1, 2)),
    "one pixel": (1, 16, 1, 1, 8, (1, 1, 1, 1)),
    "six channels": (1, 6, 9, 9, 8, (1, 1, 1, 1)),
    "six results": (1, 8, 9, 9, 6, (1, 1, 1, 1)),
}
FIRST = {
    "first": (2, 3, 9, 11, 8, (1, 1, 1, 1)),
    "first of four": (1, 4, 8, 8, 8, (0, 2, 1, 0)),
}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    return opencl.plugin(tmp_path_factory.mktemp("cache"))


def network(shape, random):
    """Return a convolution with bias, an addition and activation."""
    batch, inputs, height, width, outputs, padding = shape
    shapes = {"w": (outputs, inputs, 3, 3), "b": (outputs,), "n": (1, outputs, 1, 1)}
    constants = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=list(padding)),
        node("Add", ["c", "n"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    size = (batch, outputs, height + padding[0] + padding[2] - 2, width + padding[1] + padding[3] - 2)
    return nets.model(nodes, [value("x", (batch, inputs, height, width))], [value("y", size)], constants)


@pytest.fixture(scope="module", params=[2, 4])
def network_folders(request, tmp_path_factory):
    """Networks whose convolutions have tiles of one size, compiled once."""
    base, random = tmp_path_factory.mktemp(f"tiles-{request.param}"), np.random.default_rng(request.param)
    folders = {}

    def tiling(image, outputs, padding):
        suits = image[3] % 4 == 0 and outputs % 4 == 0
        return winograd.Tiling(image, outputs, padding, request.param) if suits else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "choose_tiling", tiling)
        for name, shape in (SHAPES | FIRST).items():
            folder = base / name.replace(" ", "-")
            kernels = opencl_campaign.compiled(network(shape, random), folder, half=False)
            folders[folder] = {function.name_hint for function in kernels.functions}
    return folders


@pytest.mark.parametrize("name", [nightly.left(POCL), nightly.left(INTEL), OCLGRIND])
def test_results_are_those_of_a_convolution(name, network_folders, plugin, tmp_path):
    opencl_runtimes.require_one(name)
    log = tmp_path / "faults.log"
    chosen = opencl_runtimes.environment(name, Checks(log) if name == OCLGRIND else None) | plugin
    results = opencl_campaign.run(network_folders, chosen, SECONDS)
    assert [result for result in results if result.fault or result.difference > LIMIT] == []
    assert len(results) == len(SHAPES | FIRST)
    assert not log.exists() or log.read_text() == ""


def test_channels_in_fours_alone_are_transformed(network_folders):
    for folder, kernels in network_folders.items():
        is_plain = folder.name.startswith(("six", "first"))
        assert ("winograd_products" in kernels) != is_plain, folder.name
        assert ("first_image" in kernels) == folder.name.startswith("first"), folder.name


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("channels", [64, 512])
def test_errors_are_as_small_as_is_promised(size, channels):
    """In numpy's single precision, which adds up as the kernels do or better; what is promised has room for both."""
    random = np.random.default_rng(channels)
    image = random.standard_normal((size + 2, size + 2, channels)).astype(np.float32)
    weights = random.standard_normal((16, channels, 3, 3)).astype(np.float32)
    into, out = (np.array(sizes[size], np.float32) for sizes in (INPUTS, OUTPUTS))
    transformed = np.einsum("ik,jl,klc->ijc", into, into, image).reshape(-1, 1, channels).astype(np.float32)
    products = (transformed @ winograd.transform_weights(weights, size)).reshape(size + 2, size + 2, 16)
    computed = np.einsum("ik,jl,klo->ijo", out, out, products)
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), (0, 1))
    expected = np.einsum("yxcij,ocij->yxo", windows, weights.astype(np.float64))
    assert np.abs(computed - expected).max() <= algebra.ERRORS[size] * np.abs(expected).max()
