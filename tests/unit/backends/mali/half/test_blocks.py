"""Kernels in half precision sum up in it, within blocks, where weights bound the sums."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.backends.mali.half import blocks
from toolchain.backends.mali.half.weight_scales import LIMIT, PRODUCTS, ROUNDED, greatest_sums, scaling_exponents
from toolchain.models import importer, source

KIND = board.load("opencl-local").resolved().with_precision(float16=True, half_sums=True)
RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def kernels(nodes, shape, initializers, folder):
    """Return the marks of a network's kernels, and by kernel its OpenCL C."""
    draft = nets.model(nodes, [value("x", shape)], [value("y", None)], initializers)
    (result,) = nets.run(draft, {"x": np.zeros(shape, np.float32)})
    proto = nets.model(nodes, [value("x", shape)], [value("y", result.shape)], initializers)
    backend = Mali(KIND)
    lowered = backend.lower(importer.import_model(source.load(nets.save(proto, folder))).module)
    marks = [
        kernel
        for _, kernel in lowered.functions_items()
        if isinstance(kernel, tirx.PrimFunc) and blocks.MARK in str(kernel)
    ]
    (host,) = tvm.compile(backend.apply_choices(lowered, {}), target=backend.target).mod.imports
    return len(marks), "".join(source.inspect_source() for source in host.imports)


CASES = {
    "1x1": ((1, 64, 8, 8), [node("Conv", ["x", "w"], ["y"])], (32, 64, 1, 1)),
    "3x3": ((1, 16, 9, 9), [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], (20, 16, 3, 3)),
    "first": ((1, 3, 23, 23), [node("Conv", ["x", "w"], ["y"], strides=[2, 2])], (8, 3, 7, 7)),
    "depthwise": ((1, 24, 9, 9), [node("Conv", ["x", "w"], ["y"], group=24)], (24, 1, 3, 3)),
    "odd": ((1, 7, 9, 9), [node("Conv", ["x", "w"], ["y"])], (12, 7, 3, 3)),
    "dense": ((4, 64), [node("MatMul", ["x", "w"], ["y"])], (64, 32)),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_multiply_and_add_vectors_of_halves(case, tmp_path):
    shape, nodes, weight = CASES[case]
    marks, text = kernels(nodes, shape, {"w": weights(*weight)}, tmp_path)
    assert marks == 1
    assert re.search(r"half4 half_sums\w*\[\d+\];", text)
    steps = [line for line in text.splitlines() if re.search(r"half_sums\w*\[\d+\] = \(half_sums\w*\[\d+\] \+ ", line)]
    assert steps
    assert all("half4" in line and "float" not in line for line in steps)
    assert not re.search(r"convert_float4\([^;]*\* ", text)  # nothing is multiplied in single
    assert re.search(r"\+ \(?\(?convert_float4\(half_sums", text)


def test_products_of_what_a_network_computes_keep_single_precision(tmp_path):
    """Nobody knows how great both factors are."""
    nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    marks, text = kernels(nodes, (16, 64), {}, tmp_path)
    assert marks == 0
    assert "half_sums" not in text


def test_weights_beyond_the_bound_keep_single_precision():
    from tvm import te, topi

    x, w = te.placeholder((4, 64), "float16", "x"), te.placeholder((64, 32), "float16", "w")
    function = te.create_prim_func([x, w, topi.nn.matmul(x, w, out_dtype="float32")])
    for size, fits in ((LIMIT / PRODUCTS, True), (1.1 * LIMIT / PRODUCTS, False)):
        weights = np.full((64, 32), size, np.float16)
        assert (blocks.MARK in str(blocks._mark(function, [[None, weights]]))) == fits
        # One call that passes something else is enough.
        assert blocks.MARK not in str(blocks._mark(function, [[None, weights], [None, None]]))


def test_rounding_up_to_halves_is_no_reason_for_single_precision():
    rows = RANDOM.standard_normal((300, 9))
    rows *= 0.99999 * LIMIT / greatest_sums(rows)[:, None]
    halves = np.ldexp(rows, scaling_exponents(rows)[:, None]).astype(np.float16)
    assert (greatest_sums(halves) > LIMIT).any()
    assert (greatest_sums(halves) <= ROUNDED).all()


def compiled(kind, folder):
    proto = nets.model(
        [node("MatMul", ["x", "w"], ["y"])], [value("x", (4, 64))], [value("y", (4, 32))], {"w": weights(64, 32)}
    )
    backend = Mali(kind)
    return backend, backend.lower(importer.import_model(source.load(nets.save(proto, folder))).module)


def test_who_asked_for_it_is_told_what_sums_in_half(tmp_path):
    backend, lowered = compiled(KIND, tmp_path)
    (remark,) = backend.remarks(backend.apply_choices(lowered, {}))
    assert remark == "1 of 1 kernels that multiply in half precision also sum in it"
    (remark,) = backend.remarks(lowered)  # without a schedule, nothing does
    assert re.fullmatch(
        r"0 of 1 kernels that multiply in half precision also sum in it; in single precision: \w*matmul\w*", remark
    )


def test_nothing_sums_in_half_unless_it_is_asked_for(tmp_path):
    backend, lowered = compiled(board.load("opencl-local").resolved().with_precision(float16=True), tmp_path)
    finished = backend.apply_choices(lowered, {})
    assert backend.remarks(finished) == ()
    assert blocks.MARK not in str(lowered)
    assert blocks._NAME not in str(finished)
    assert "float16" in str(finished)
