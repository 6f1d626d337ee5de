"""What follows the last layers is in single precision."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, source

KIND = board.load("rk3588").resolved()
CPU = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
RANDOM = np.random.default_rng(0)
LAYER = node("Conv", ["x", "k", "b"], ["c"])

NETWORKS = {
    "a layer": [node("Conv", ["x", "k", "b"], ["y"])],
    "what follows": [
        LAYER,
        node("Relu", ["c"], ["d"]),
        node("Concat", ["d", "c"], ["e"], axis=1),
        node("Abs", ["e"], ["y"]),
    ],
    "beside another layer": [
        LAYER,
        node("Mul", ["x", "s"], ["p"]),
        node("Conv", ["p", "k", "b"], ["d"]),
        node("Add", ["c", "d"], ["y"]),
    ],
}


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_may_be_greater_than_half_precision_holds(name, sums, tmp_path):
    given = {
        "k": 2e4 * RANDOM.standard_normal((8, 8, 1, 1)),
        "b": 1e5 * RANDOM.standard_normal(8),
        "s": np.float32([0.5]),
    }
    used = {
        key: array.astype(np.float32) for key, array in given.items() if any(key in one.input for one in NETWORKS[name])
    }
    array = RANDOM.standard_normal((1, 8, 6, 6)).astype(np.float32)
    draft = nets.model(NETWORKS[name], [value("x", array.shape)], [value("y", None)], used)
    (wanted,) = nets.run(draft, {"x": array})
    proto = nets.model(NETWORKS[name], [value("x", array.shape)], [value("y", wanted.shape)], used)
    imported = importer.import_model(source.load(nets.save(proto, tmp_path)))
    lowered = Mali(KIND.in_float16(half_sums=sums)).lower(imported.module)
    result = relax.VirtualMachine(tvm.compile(lowered, target=CPU), tvm.cpu())["main"](tvm.runtime.tensor(array))
    found = (result if hasattr(result, "numpy") else result[0]).numpy()
    assert np.abs(wanted).max() > 1e5
    assert np.abs(found - wanted).max() <= 5e-3 * np.abs(wanted).max()
    assert np.abs(found - wanted).max() > 0
