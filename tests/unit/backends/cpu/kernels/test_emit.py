"""The parts that kernels are written with."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.support.cpu_kernels import AARCH64, ARMV7, applied, assembly, blocked, random, run
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.layers import Activation, PostOp

T = emit.T

LANES = pytest.mark.parametrize("lanes", [1, 4, 8, 16])
TARGETS = {
    "avx512": (tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"}), 16, "%zmm"),
    "avx2": (tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}), 8, "%ymm"),
    "aarch64": (AARCH64, 4, ".4s"),
    "armv7": (ARMV7, 4, "\tq"),
}

STEPS = {
    "relu": PostOp("relu"),
    "clip": PostOp("clip", (-1.0, 6.0)),
    "leaky_relu": PostOp("leaky_relu", (0.1,)),
    "sigmoid": PostOp("sigmoid"),
    "silu": PostOp("silu"),
    "tanh": PostOp("tanh"),
    "hard_sigmoid": PostOp("hard_sigmoid", (0.2, 0.5)),
    "hard_swish": PostOp("hard_swish"),
}


def element_wise(function, size, lanes):
    """Write a kernel that does something to each vector of an array."""

    def body(data, out):
        with T.serial(0, size // lanes) as number:
            index = [emit.ramp(number * lanes, lanes)]
            T.buffer_store(out, function(T.Bind(data[index[0]])), index)

    return emit.kernel([Argument("data", (size,)), Argument("out", (size,))], body, {})


def mapped(function, array, lanes):
    assert array.size % 16 == 0
    return run(element_wise(function, array.size, lanes), [array], np.full_like(array, 77))


# --- the exponential and what is made of it ------------------------------------------------------------------------


@LANES
def test_exp(lanes):
    x = np.linspace(-87.3, 88.7, 1 << 14, dtype=np.float32)
    actual = mapped(lambda value: emit.functions(lanes).exp(value), x, lanes)
    assert np.abs(actual / np.exp(x.astype(np.float64)) - 1).max() < 1e-7


def test_exp_near_zero_and_at_powers_of_two():
    x = np.concatenate([np.linspace(-1e-3, 1e-3, 4096), np.arange(-125.5, 128, 0.5)[:496] * np.log(2)]).astype(
        np.float32
    )
    actual = mapped(lambda value: emit.functions(16).exp(value), x, 16)
    assert np.abs(actual / np.exp(x.astype(np.float64)) - 1).max() < 1.5e-7


@LANES
def test_exp_far_out(lanes):
    x = np.array([-np.inf, -1e30, -1000, -90, 90, 1000, np.inf, np.nan] * 2, np.float32)
    actual = mapped(lambda value: emit.functions(lanes).exp(value), x, lanes)
    np.testing.assert_array_equal(actual, np.array([0, 0, 0, 0, np.inf, np.inf, np.inf, np.nan] * 2, np.float32))


@pytest.mark.parametrize("kind", ["sigmoid", "tanh", "silu"])
@LANES
def test_accuracy(kind, lanes):
    near = np.geomspace(1e-6, 1, 2048)
    x = np.concatenate([np.linspace(-85, 90, 4096), near, -near]).astype(np.float32)
    actual = mapped(lambda value: emit.activation(STEPS[kind], value, lanes), x, lanes)
    expected = applied(x.astype(np.float64), [STEPS[kind]], [])
    np.testing.assert_allclose(actual, expected, rtol=5e-7)


@pytest.mark.parametrize("kind", STEPS)
def test_far_out(kind):
    x = np.array([-100, -1e4, -1e30, 100, 1e4, 1e30] + [0] * 10, np.float32)
    actual = mapped(lambda value: emit.activation(STEPS[kind], value, 16), x, 16)
    with np.errstate(over="ignore"):
        expected = applied(x.astype(np.float64), [STEPS[kind]], [])
    # The exponential stops at the least normal number; silu's data is a factor of it.
    bound = 1e-7 if kind != "silu" else 1e-7 * np.maximum(1, np.abs(x) * 1e-31)
    assert (np.abs(actual - expected) <= bound + 1e-6 * np.abs(expected)).all()


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("kind", STEPS)
def test_activations(kind, lanes):
    x = random((64,)) * 8
    actual = mapped(lambda value: emit.activation(STEPS[kind], value, lanes), x, lanes)
    np.testing.assert_allclose(actual, applied(x.astype(np.float64), [STEPS[kind]], []), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh"])
@LANES
def test_gelu(kind, lanes):
    # Its error is that of a sum of about 1 and -1, times the data.
    x = np.concatenate([np.linspace(-12, 12, 4080), [-1e3, -1e20, 1e3, 1e20, -40, 40, 0, -0.0] * 2]).astype(np.float32)
    actual = mapped(lambda value: emit.activation(PostOp(kind), value, lanes), x, lanes)
    expected = applied(x.astype(np.float64), [PostOp(kind)], [])
    assert (np.abs(actual - expected) <= 2e-7 * np.clip(np.abs(x), 1, 6) + 3e-7 * np.abs(expected)).all()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ["sigmoid", "tanh"])
def test_vector_code(kind, name):
    target, lanes, register = TARGETS[name]
    code = assembly(element_wise(lambda value: emit.activation(STEPS[kind], value, lanes), 64, lanes), target)
    assert register in code
    assert not [name for name in ("expf", "tanhf", "roundf", "floorf", "fmaf", "ldexpf") if name in code]


# --- steps ---------------------------------------------------------------------------------------------------------


def test_a_single_pixel_goes_with_all():
    activation = Activation(2, 16, 3, 5, 8, first=1, held=4)
    pixel = Activation(2, 16, 1, 1, 8, first=1, held=3)
    epilogue = (PostOp("mul", other=pixel), PostOp("add", other=activation))
    data, gate, other = random((2, 16, 3, 5)), random((2, 16, 1, 1), 1), random((2, 16, 3, 5), 2)

    def body(source, *buffers):
        *others, out = buffers
        with T.serial(0, 2) as image, T.serial(0, 2) as block, T.serial(0, 3) as row, T.serial(0, 5) as column:
            index = (image, block, row, column)
            where = emit.ramp(emit.offset(activation, *index), 8)
            T.buffer_store(out, emit.apply_epilogue(source[where], epilogue, others, index, 8), [where])

    arguments = [
        Argument("data", activation.shape),
        *emit.arguments_of(epilogue, activation),
        Argument("out", activation.shape),
    ]
    inputs = [blocked(data, activation), blocked(gate, pixel), blocked(other, activation)]
    actual = run(emit.kernel(arguments, body, {}), inputs, np.full(activation.shape, 77, np.float32))
    expected = blocked(data * gate + other, activation)
    np.testing.assert_allclose(actual[:, 1:3], expected[:, 1:3], rtol=1e-6, atol=1e-6)
    assert (actual[:, [0, 3]] == 77).all()


def test_arguments_of_steps():
    out, other = Activation(1, 20, 4, 4, 16), Activation(1, 20, 4, 4, 16, first=1, held=3)
    epilogue = (PostOp("relu"), PostOp("scale"), PostOp("add", other=other))
    actual = emit.arguments_of(epilogue, out)
    assert actual == [Argument("operand1", (2, 16)), Argument("operand2", (1, 3, 4, 4, 16))]


# --- sharing work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "limit", "cores", "expected"),
    [(8, 8, 2, 1), (1, 8, 2, 2), (3, 8, 2, 2), (1, 1, 4, 1), (5, 3, 4, 3), (21, 8, 2, 1), (5, 8, 1, 1)],
)
def test_parts(groups, limit, cores, expected):
    assert emit.count_shares(groups, limit, cores) == expected


def test_small_work_is_not_shared():
    assert emit.worker_count(1 << 10, 4) == 1
    assert emit.worker_count(1 << 20, 4) == 4


@pytest.mark.parametrize(
    ("extent", "operations", "is_parallel"), [(4, 1 << 20, True), (4, 1 << 10, False), (1, 1 << 20, False)]
)
def test_shared_loops(extent, operations, is_parallel):
    def body(out):
        with emit.shared(extent, operations) as number:
            T.buffer_store(out, T.Bind(number * 2), [number])

    function = emit.kernel([Argument("out", (extent,), "int32")], body, {})
    assert ("T.parallel" in function.script()) == is_parallel
    np.testing.assert_array_equal(run(function, [], np.zeros(extent, np.int32)), np.arange(extent) * 2)
