"""Each call of a kernel says which nodes of the model's file it computes, on every kind of board."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support import int8_nets, nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends import backend_of
from toolchain.bundle import GRAPH, GRAPH_TEXT, kernels
from toolchain.compile import compiler, nodes, prepare
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, inputs, source
from toolchain.models.request import Model


def convolutions():
    """Two convolutions of one shape, and so one kernel, and a softmax."""
    weights = {name: np.full((16, 16, 3, 3), 0.01, np.float32) for name in ("w1", "w2")}
    layers = [
        node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], name="relu1"),
        node("Conv", ["b", "w2"], ["c"], name="conv2", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["d"], name="relu2"),
        node("Flatten", ["d"], ["e"], name="flatten"),
        node("Softmax", ["e"], ["y"], name="softmax"),
    ]
    ends = [value("x", (1, 16, 8, 8))], [value("y", (1, 1024))]
    return nets.model(layers, *ends, weights)


def of_calls(proto, folder, kind: str):
    path, resolved = nets.save(proto, folder), board.load(kind).resolved()
    request = BuildRequest(Model(path, {}, inputs.Source()), resolved)
    imported = importer.import_model(prepare.quantize_if_needed(source.load(path), request).source)
    backend = backend_of(resolved)
    return nodes.nodes_by_call(backend.apply_choices(backend.lower(imported.module), {}), imported.module)


@pytest.mark.parametrize("kind", ["local", "rpi4", "opencl-local", "rk3588"])
def test_fused_layers_name_their_nodes_the_layer_with_the_work_first(tmp_path, kind):
    calls = of_calls(convolutions(), tmp_path, kind)
    names = [tuple(each) for _, each in calls]
    assert ("conv1", "relu1") in names
    assert ("conv2", "relu2") in names
    assert names.index(("conv1", "relu1")) < names.index(("conv2", "relu2"))
    assert names[-1][0] == "softmax"
    assert all(names), "no call is without a node"


def test_kernels_of_vta_name_the_layer_and_not_what_rounds_it(tmp_path):
    proto = int8_nets.residual(16, 8)
    calls = [(kernel, each) for kernel, each in of_calls(proto, tmp_path, "vta-sim") if kernel.startswith("vta_")]
    layers = [node.name or node.output[0] for node in proto.graph.node if node.op_type == "Conv"]
    assert sorted(each[0] for _, each in calls) == sorted(layers)
    assert all(len(each) > 1 for _, each in calls), "rounding is computed with it"


def test_a_bundle_says_it_and_its_library_does_not(tmp_path):
    path = nets.save(convolutions(), tmp_path)
    request = BuildRequest(Model(path, {}, inputs.Source()), board.load("local").resolved())
    built = compiler.build(importer.import_model(source.load(path)), request, tmp_path / "bundle")
    by_name = kernels.read((built.folder / GRAPH_TEXT).read_text(encoding="utf-8"))
    (twice,) = [kernel for kernel in by_name.values() if len(kernel.nodes) == 2]
    assert twice.nodes == (("conv1", "relu1"), ("conv2", "relu2"))
    assert b"relu1" not in (built.folder / "model.so").read_bytes()
    assert "SourceName" not in json.dumps(json.loads((built.folder / GRAPH).read_text(encoding="utf-8")))
