"""Fusion of operators: the results of fused kernels still say which node they come from."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain.backends.graph import fusion
from toolchain.models import importer, origins, source

_PASSES = (relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant())


def written(tmp_path, nodes, weights):
    ends = [value("x", (4, 4))], [value("y", (4, 4))]
    module = importer.import_model(source.load(nets.save(nets.model(nodes, *ends, weights), tmp_path))).module
    return tvm.transform.Sequential(_PASSES)(module)


def test_a_fused_kernel_returns_the_result_of_its_last_node(tmp_path):
    weights = {name: np.full((4, 4), number, np.float32) for number, name in enumerate(("v", "w"), 1)}
    nodes = [
        node("MatMul", ["x", "v"], ["a"], name="left"),
        node("Relu", ["a"], ["b"], name="left.relu"),
        node("MatMul", ["x", "w"], ["c"], name="right"),  # the same kernel on the same data, with other weights
        node("Relu", ["c"], ["d"], name="right.relu"),
        node("Sub", ["b", "d"], ["y"], name="minus"),
    ]
    module = written(tmp_path, nodes, weights)
    fused = fusion.fuse(module)
    first, last = origins.bindings(fused)
    assert [origins.returns(binding.var).name for binding in (first, last)] == ["right.relu", "minus"]
    assert first.value.args[1].fields[1].value.numpy()[0, 0] == 2, "the weights of the right product"
    plain = tvm.transform.Sequential([relax.transform.FuseOps(), relax.transform.FuseTIR()])(module)
    assert fused.script() == plain.script(), "nothing but the spans is different"


def test_a_kernel_with_several_results_is_fused_as_before(tmp_path):
    nodes = [
        node("Split", ["x"], ["a", "b"], name="split", axis=0),
        node("Concat", ["b", "a"], ["c"], name="join", axis=0),
        node("Relu", ["c"], ["y"], name="relu"),
    ]
    module = written(tmp_path, nodes, {})
    plain = tvm.transform.Sequential([relax.transform.FuseOps(), relax.transform.FuseTIR()])(module)
    fused = fusion.fuse(module)
    assert fused.script() == plain.script()
    assert origins.returns(list(origins.bindings(fused))[-1].var).name == "relu"
