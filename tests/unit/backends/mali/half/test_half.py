"""Scheduled kernels on this machine's CPU: with plain loops they compute what work-items would."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.errors import InputError
from toolchain.models import importer, source

RANDOM = np.random.default_rng(0)
LOCAL = board.load("opencl-local").resolved()
CASES = {
    "shared-rows": ((2, 3000), [node("Softmax", ["x"], ["y"])], ()),
    "rows": ((64, 40), [node("LayerNormalization", ["x", "w"], ["y"])], (40,)),
    "mean": ((1, 8, 30, 30), [node("GlobalAveragePool", ["x"], ["y"])], ()),
    "padded": ((1, 8, 19, 19), [node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)], (8, 8, 3, 3)),
    "sums": ((2, 300), [node("CumSum", ["x", "axis"], ["y"])], ()),
    "dense": ((3, 64), [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], (64, 20)),
}


def computed(nodes, shape, weight, folder, kind=LOCAL):
    """Return what this machine makes of a network's scheduled kernels, and what ONNX Runtime does."""
    initializers = {"w": RANDOM.standard_normal(weight).astype(np.float32)} if weight else {}
    initializers |= {"axis": np.array(1, np.int64)} if nodes[0].op_type == "CumSum" else {}
    array = RANDOM.standard_normal(shape).astype(np.float32)
    (expected,) = nets.run(nets.model(nodes, [value("x", shape)], [value("y", None)], initializers), {"x": array})
    proto = nets.model(nodes, [value("x", shape)], [value("y", expected.shape)], initializers)
    backend = Mali(kind)
    imported = importer.import_model(source.load(nets.save(proto, folder)))
    module = backend.on_cpu(backend.apply_choices(backend.lower(imported.module), {}))
    machine = relax.VirtualMachine(tvm.compile(module, target=tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(array)).numpy(), expected


@pytest.mark.parametrize("case", CASES)
def test_plain_loops_compute_what_work_items_do(case, tmp_path):
    shape, nodes, weight = CASES[case]
    mine, theirs = computed(nodes, shape, weight, tmp_path)
    assert np.abs(mine - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_halves_are_rounded_and_singles_are_not(tmp_path):
    shape, nodes, weight = CASES["dense"]
    off = {}
    for sums in (False, True):
        mine, theirs = computed(nodes, shape, weight, tmp_path, LOCAL.with_precision(float16=True, half_sums=sums))
        off[sums] = np.abs(mine - theirs).max() / np.abs(theirs).max()
    assert 1e-5 < off[False] < 1e-3  # the inputs are rounded
    assert off[False] < off[True] < 1e-2  # and each sum


def test_kernels_that_are_written_as_work_items_are_named(tmp_path):
    layer = [node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]  # by Winograd's algorithm
    with pytest.raises(InputError, match="winograd_inputs is written for work-items"):
        computed(layer, (1, 32, 28, 28), (64, 32, 3, 3), tmp_path)
