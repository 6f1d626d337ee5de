"""Convolutions over time as products."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets
from toolchain.backends.graph.time_convolutions import as_products
from toolchain.models import importer, source
from toolchain.models.request import Model


def imported(folder, shape, kernel, **attributes):
    weights = {"w": np.random.default_rng(1).standard_normal(kernel).astype(np.float32)}
    proto = nets.model(
        [nets.node("Conv", ["x", "w"], ["y"], **attributes)], [nets.value("x", shape)], [nets.value("y", None)], weights
    )
    return proto, importer.import_model(source.load_request(Model(nets.save(proto, folder)))).module


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((4, 6, 1), {}),
        ((4, 6, 3), {}),
        ((4, 6, 4), {"pads": [3, 0], "dilations": [1]}),
        ((4, 6, 3), {"pads": [1, 2], "dilations": [2]}),
        ((6, 1, 5), {"group": 6, "pads": [2, 2]}),
        ((6, 1, 1), {"group": 6}),
    ],
)
def test_the_product_is_the_convolution(kernel, attributes, tmp_path):
    proto, module = imported(tmp_path, (2, 6, 9), kernel, **attributes)
    rewritten = as_products(module)
    assert "conv" not in rewritten["main"].script()
    machine = relax.VirtualMachine(tvm.compile(rewritten, "llvm"), tvm.cpu())
    arrays = {"x": np.random.default_rng(2).random((2, 6, 9), dtype=np.float32)}
    result = machine["main"](tvm.runtime.tensor(arrays["x"])).numpy()
    np.testing.assert_allclose(result, nets.run(proto, arrays)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 6, 9), (4, 6, 1), {"strides": [2]}),
        ((1, 6, 9), (4, 3, 1), {"group": 2}),
        ((1, 6, 9), (12, 1, 3), {"group": 6}),
        ((1, 6, 1), (4, 6, 1), {}),
        ((1, 6, 9, 9), (4, 6, 1, 1), {}),
        ((1, 6, 1, 9), (4, 6, 3, 1), {"pads": [1, 0, 1, 0]}),
    ],
)
def test_others_stay(shape, kernel, attributes, tmp_path):
    assert as_products(imported(tmp_path, shape, kernel, **attributes)[1]) is None
