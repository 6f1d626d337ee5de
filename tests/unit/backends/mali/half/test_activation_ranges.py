"""Layers that read small numbers are given greater ones, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.backends.mali.half import activation_ranges
from toolchain.models import importer, source

RANDOM = np.random.default_rng(0)
CPU = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def imported(folder, scale, *, dense=False):
    """Return a network whose layers read normal numbers, then numbers of about a scale, of which one is read twice."""
    nodes = [
        node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        node("Mul", ["a", "scale"], ["b"]),
        node("Conv", ["b", "one"], ["c"]),
        node("Conv", ["b", "other"], ["d"]),
        node("Add", ["c", "d"], ["e" if dense else "y"]),
    ]
    initializers = {
        "first": RANDOM.standard_normal((8, 4, 3, 3)).astype(np.float32),
        "scale": np.array(scale, np.float32),
        "one": RANDOM.standard_normal((8, 8, 1, 1)).astype(np.float32),
        "other": RANDOM.standard_normal((8, 8, 1, 1)).astype(np.float32),
    }
    shape = (1, 8, 6, 6)
    if dense:
        nodes += [
            node("GlobalAveragePool", ["e"], ["f"]),
            node("Flatten", ["f"], ["g"]),
            node("Gemm", ["g", "matrix"], ["y"], transB=1),
        ]
        initializers["matrix"] = RANDOM.standard_normal((8, 8)).astype(np.float32)
        shape = (1, 8)
    proto = nets.model(nodes, [value("x", (1, 4, 6, 6))], [value("y", shape)], initializers)
    return importer.import_model(source.load(nets.save(proto, folder))).module


def factors(module):
    """Return what products with a single constant multiply by."""
    constants: list[float] = []

    def visit(call):
        if isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.multiply":
            weight = call.args[1]
            if isinstance(weight, tvm.ir.GenericConst) and weight.value.numpy().size == 1 and weight.value.numpy().ndim:
                constants.append(float(weight.value.numpy().reshape(())))

    relax.analysis.post_order_visit(module["main"].body, visit)
    return constants


def computed(module, x):
    return relax.VirtualMachine(tvm.compile(module, target=CPU), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("dense", [False, True])
def test_small_numbers_are_raised_by_a_power_of_two_and_results_stay_to_the_bit(dense, tmp_path):
    module, x = imported(tmp_path, 1e-5, dense=dense), RANDOM.standard_normal((1, 4, 6, 6)).astype(np.float32)
    rescaled, layers = activation_ranges.rescale_layers(module, [{"x": x}])
    assert len(layers) == 2 + dense
    assert len(factors(rescaled)) == 1 + dense  # both layers that read the same share it
    assert all(np.log2(factor) == 15 for factor in factors(rescaled))
    assert {layer.limit for layer in layers} == {65504 / 2**15}
    np.testing.assert_array_equal(computed(rescaled, x), computed(module, x))


def test_what_is_not_small_stays(tmp_path):
    module = imported(tmp_path, 1.0)
    assert activation_ranges.rescale_layers(
        module, [{"x": RANDOM.standard_normal((1, 4, 6, 6)).astype(np.float32)}]
    ) == (module, ())


@pytest.mark.parametrize("other", [1e5, np.inf, np.nan])
def test_neither_does_what_one_of_several_inputs_makes_great_or_no_number(other, tmp_path):
    module, x = imported(tmp_path, 1e-5), RANDOM.standard_normal((1, 4, 6, 6)).astype(np.float32)
    assert activation_ranges.rescale_layers(module, [{"x": x}, {"x": x * np.float32(other)}]) == (module, ())


def test_what_is_too_great_is_limited_and_what_is_no_number_stays_none(tmp_path):
    module, x = imported(tmp_path, 1e-5), RANDOM.standard_normal((1, 4, 6, 6)).astype(np.float32)
    rescaled, layers = activation_ranges.rescale_layers(module, [{"x": x}])
    great = computed(rescaled, x * np.float32(1e30))
    assert np.isfinite(great).all()
    assert np.abs(great).max() <= 2 * 8 * layers[0].limit * 5  # two sums of eight products, weights below five
    for other in (np.nan, np.inf):
        x[0, :, 0, 0] = other
        assert np.isnan(computed(rescaled, x)[0, :, 0, 0]).all()


def test_so_does_what_is_all_zero(tmp_path):
    module, x = imported(tmp_path, 1e-5), np.zeros((1, 4, 6, 6), np.float32)
    assert activation_ranges.rescale_layers(module, [{"x": x}]) == (module, ())


@pytest.mark.parametrize(
    ("magnitude", "power"),
    [(0.0, 0), (np.inf, 0), (np.nan, 0), (1.0, 0), (0.04, 0), (2.0**-5, 9), (0.01, 10), (1e-5, 15), (1e-40, 15)],
)
def test_powers_bring_the_greatest_near_sixteen(magnitude, power):
    assert activation_ranges._power(magnitude) == power
    assert not 9 <= power < 15 or 8 < magnitude * 2.0**power <= 16


def test_only_sums_in_half_precision_want_it(tmp_path):
    module, kind, lines = imported(tmp_path, 1e-3), board.load("rk3588").resolved(), []
    sample = {"x": RANDOM.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    assert Mali(kind.with_precision(float16=True)).rescale_for_half(module, lambda: [sample], lines.append) is module
    assert lines == []
    assert (
        Mali(kind.with_precision(float16=True, half_sums=True)).rescale_for_half(module, lambda: [sample], lines.append)
        is not module
    )
    assert [line.partition(": input scaled up")[0] for line in lines] == [
        "layer 2 (conv2d, weights 8x8x1x1)",
        "layer 3 (conv2d, weights 8x8x1x1)",
    ]
    assert all("reads at most" in line for line in lines)
