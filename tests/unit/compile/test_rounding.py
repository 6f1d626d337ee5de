"""What a build says of half precision, before there is a device."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support import nets
from toolchain import board, bundle
from toolchain.compile.request import BuildRequest
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.pipeline.built import Built
from toolchain.pipeline.source import BundleSource

LOCAL = board.load("opencl-local").resolved()
CPU = board.load("local").resolved()
RANDOM = np.random.default_rng(0)


def built(nodes, shape, constants, folder, kind):
    """Build a network, and return the bundle and all that was told."""
    draft = nets.model(nodes, [nets.value("x", shape)], [nets.value("y", None)], constants)
    (result,) = nets.run(draft, {"x": np.zeros(shape, np.float32)})
    proto = nets.model(nodes, [nets.value("x", shape)], [nets.value("y", result.shape)], constants)
    messages: list[str] = []
    request = BuildRequest(Model(nets.save(proto, folder), {}, inputs.Source(seed=5)), kind, messages.append)
    return BundleSource(request).build(folder / "made"), "\n".join(map(str, messages))


def dense(folder, kind, weights=None):
    constants = {"w": RANDOM.standard_normal((48, 10)).astype(np.float32) if weights is None else weights}
    return built([nets.node("MatMul", ["x", "w"], ["y"])], (2, 48), constants, folder, kind)


@pytest.mark.parametrize("sums", [False, True])
def test_the_difference_of_each_output_is_in_the_manifest_and_told(tmp_path, sums):
    release, messages = dense(tmp_path, LOCAL.with_precision(float16=True, half_sums=sums))
    half = bundle.load(release.folder).manifest.half
    assert half.inputs == "random numbers of seed 5"
    assert half.reference.startswith("onnxruntime")
    (output,) = half.outputs
    assert (output.name, output.limit, output.ok) == ("y", 2e-2, True)
    assert 1e-5 < output.max_rel < 1e-2
    assert f"y {output.max_rel:.1e} of the largest value off (limit 2e-02)" in messages
    report = Built(release)
    assert report.refusal() is None
    assert any("emulated" in str(line) for line in report.render_text())
    assert json.loads(release.manifest.encoded())["half"]["outputs"][0]["max_rel"] == output.max_rel
    assert "Half precision, emulated" in report.html()


def test_bfloat16_has_a_difference_and_a_limit_too(tmp_path):
    constants = {"w": RANDOM.standard_normal((256, 128)).astype(np.float32)}
    nodes = [nets.node("MatMul", ["x", "w"], ["h"]), nets.node("Relu", ["h"], ["y"])]
    release, messages = built(nodes, (32, 256), constants, tmp_path, CPU.with_precision(bfloat16=True))
    half = bundle.load(release.folder).manifest.half
    (output,) = half.outputs
    assert (half.format, output.limit, output.ok) == ("bfloat16", 1e-1, True)
    assert 1e-4 < output.max_rel < 2e-2
    assert f"in bfloat16, y {output.max_rel:.1e} of the largest value off (limit 1e-01)" in messages
    assert "1 of 1 kernels with products are in bfloat16" in messages
    assert json.loads(release.manifest.encoded())["half"]["format"] == "bfloat16"
    assert "--bfloat16" in release.manifest.command.split()
    assert "Bfloat16, emulated" in Built(release).html()
    assert "bfloat16_dense" in (release.folder / bundle.GRAPH_TEXT).read_text()


@pytest.mark.parametrize(("weights", "limit", "text"), [("int8", 5e-2, "5e-02"), ("int4", 0.15, "1.5e-01")])
def test_rounded_weights_have_a_difference_and_a_limit_too(tmp_path, weights, limit, text):
    constants = {"w": RANDOM.standard_normal((256, 64)).astype(np.float32)}
    nodes = [nets.node("MatMul", ["x", "w"], ["h"]), nets.node("Relu", ["h"], ["y"])]
    release, messages = built(nodes, (2, 256), constants, tmp_path, CPU.with_precision(weights=weights))
    half = bundle.load(release.folder).manifest.half
    (output,) = half.outputs
    assert (half.format, output.limit, output.ok) == (weights, limit, True)
    assert 1e-4 < output.max_rel < limit
    assert f"with {weights} weights, y {output.max_rel:.1e} of the largest value off (limit {text})" in messages
    assert "1 of 1 kernels with products have weights of 4 or 8 bits" in messages
    assert f"--weights {weights}" in release.manifest.command
    assert f"{weights.capitalize()} weights, emulated" in Built(release).html()
    assert f"packed{weights[3:]}_dense" in (release.folder / bundle.GRAPH_TEXT).read_text()
    assert (release.folder / "params.safetensors").stat().st_size < 0.3 * constants["w"].nbytes


def test_rounded_weights_beyond_their_limit_end_the_build_so(tmp_path):
    weights = RANDOM.standard_normal((256, 64)).astype(np.float32)
    nodes = [nets.node("Concat", ["x", "x"], ["c"], axis=1), nets.node("MatMul", ["c", "w"], ["y"])]
    constants = {"w": np.concatenate([weights, 1e-3 - weights])}
    release, messages = built(nodes, (2, 256), constants, tmp_path, CPU.with_precision(weights="int8"))
    assert "WRONG with int8 weights: y" in messages
    fault = Built(release).refusal()
    assert (fault.exit_code, fault.hint) == (5, "leave --weights out")


def test_bfloat16_beyond_its_limit_ends_the_build_so(tmp_path):
    weights = RANDOM.standard_normal((64, 16)).astype(np.float32)
    nodes = [nets.node("Concat", ["x", "x"], ["c"], axis=1), nets.node("MatMul", ["c", "w"], ["y"])]
    constants = {"w": np.concatenate([weights, 1e-3 - weights])}
    release, messages = built(nodes, (2, 64), constants, tmp_path, CPU.with_precision(bfloat16=True))
    assert "WRONG in bfloat16: y" in messages
    fault = Built(release).refusal()
    assert (fault.exit_code, fault.hint) == (5, "leave --bfloat16 out")


def test_single_precision_has_none(tmp_path):
    release, messages = dense(tmp_path, LOCAL)
    assert release.manifest.half is None
    assert "half" not in json.loads(release.manifest.encoded())
    assert "half precision" not in messages


def test_sums_that_cancel_are_beyond_the_limit_and_the_build_ends_so(tmp_path):
    weights = RANDOM.standard_normal((8, 16, 3, 3)).astype(np.float32)
    nodes = [nets.node("Concat", ["x", "x"], ["c"], axis=1), nets.node("Conv", ["c", "w"], ["y"])]
    constants = {"w": np.concatenate([weights, 1e-3 - weights], axis=1)}
    release, messages = built(
        nodes, (1, 16, 6, 6), constants, tmp_path, LOCAL.with_precision(float16=True, half_sums=True)
    )
    (output,) = release.manifest.half.outputs
    assert not output.ok
    assert output.max_rel > 0.02
    assert "WRONG in half precision: y" in messages
    fault = Built(release).refusal()
    assert fault.exit_code == 5
    assert "--float16 instead of --half-sums" in fault.hint
    assert "beyond" in Built(release).html()


def test_what_overflows_is_said_to_be_no_number(tmp_path):
    release, messages = dense(tmp_path, LOCAL.with_precision(float16=True), np.full((48, 10), 1e30, np.float32))
    (output,) = release.manifest.half.outputs
    assert (output.max_rel, output.ok) == (None, False)
    assert "y not finite" in messages
    assert Built(release).refusal().hint == "leave --float16 out"


def test_what_cannot_be_computed_here_is_said_to_be_unknown(tmp_path):
    nodes = [nets.node("ScatterND", ["x", "places", "given"], ["y"])]
    constants = {"places": np.array([[1], [1]], np.int64), "given": np.ones((2, 50), np.float32)}
    release, messages = built(nodes, (4, 50), constants, tmp_path, LOCAL.with_precision(float16=True))
    half = release.manifest.half
    assert (half.outputs, half.ok) == ((), True)
    assert "scatter_nd is written for work-items" in half.obstacle
    assert "not known before a deploy" in messages
    assert Built(release).refusal() is None
    assert "scatter_nd" in Built(release).html()
