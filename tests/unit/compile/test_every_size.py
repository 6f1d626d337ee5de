"""Networks for every size: joined from some, or row by row; and the reasons why neither is possible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets, text_nets, variant_nets
from toolchain import board
from toolchain.compile import every_size, executable, rows
from toolchain.compile.every_size import ByRows, Joined
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.models import importer, source
from toolchain.models.request import Model, Range
from toolchain.models.variants import with_range

GREATEST = 12


def prepared(proto, folder, dimension="batch", dims=None, **target):
    """Return how a network is compiled for 1 to 12, and the request."""
    local = board.load("local").resolved()
    local = replace(local, target=replace(local.target, **target))
    model = with_range(Model(nets.save(proto, folder), dims=dims or {}), Range(dimension, 1, GREATEST))
    request = BuildRequest(model, local, progress=lambda _: None)
    networks = {size: importer.import_model(source.load_request(model.of_size(size))) for size in (1, 5, GREATEST)}
    outputs = {f"{dimension}-{size}": network.outputs for size, network in networks.items()}
    return every_size.prepare(networks[GREATEST], outputs, request), request


def row_by_row(proto, folder, dims=None, **target):
    """Return the function of a network that must be compiled row by row, and the memory of its activations."""
    every, request = prepared(proto, folder, dims=dims, **target)
    assert isinstance(every, ByRows)
    backend = request.backend
    one = backend.apply_choices(backend.lower(every.one.module), {})
    compiled = rows.for_each_row(executable.lift_constants(one), every.inputs, every.results)
    return compiled_function(compiled, backend, folder)


def compiled_function(compiled, backend, folder):
    """Return a network as a function of arrays, and the memory of its activations."""
    code = executable.compile_module(compiled.module, backend.target, results=4 * GREATEST)
    code.executable.export_library(str(folder / "net.so"))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "net.so")), tvm.cpu())
    params = [tvm.runtime.tensor(param) for param in compiled.params.values()]

    def run(arrays):
        result = machine["main"](*map(tvm.runtime.tensor, arrays.values()), *params)
        return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [each.numpy() for each in result]

    return run, code.activations["main"]


def agrees(proto, folder, arrays_of, dims=None, **target) -> None:
    run, _ = row_by_row(proto, folder, dims, **target)
    for size in (1, 2, 5, 7, 11, GREATEST):
        arrays = arrays_of(np.random.default_rng(size), size)
        for value, expected in zip(run(arrays), nets.run(proto, arrays), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=f"size {size}")


def test_convolutions_with_any_batch(tmp_path):
    def arrays(stream, size):
        return {"x": stream.random((size, 3, 16, 16), dtype=np.float32)}

    agrees(variant_nets.pictures(), tmp_path, arrays, {"height": 16, "width": 16})


def test_attention_with_any_batch_and_two_results(tmp_path):
    def arrays(stream, size):
        mask = np.ones((size, 9), np.int64)
        mask[-1, 5:] = 0
        return {"ids": stream.integers(0, 50, (size, 9)), "mask": mask}

    agrees(text_nets.encoder(), tmp_path, arrays, {"length": 9})


def test_a_recurrence_with_the_batch_behind_the_time(tmp_path):
    stream = np.random.default_rng(2)
    weights = {
        name: stream.standard_normal(shape).astype(np.float32) / 4
        for name, shape in (("w", (1, 64, 8)), ("r", (1, 64, 16)))
    }
    nodes = [nets.node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["every", "last"], hidden_size=16)]
    inputs = [nets.value("x", (5, "batch", 8)), *(nets.value(name, (1, "batch", 16)) for name in "hc")]
    outputs = [nets.value("every", (5, 1, "batch", 16)), nets.value("last", (1, "batch", 16))]

    def arrays(stream, size):
        shapes = {"x": (5, size, 8), "h": (1, size, 16), "c": (1, size, 16)}
        return {name: stream.random(shape, dtype=np.float32) for name, shape in shapes.items()}

    agrees(nets.model(nodes, inputs, outputs, weights), tmp_path, arrays)


def test_a_scalar_that_all_rows_share(tmp_path):
    inputs = [nets.value("x", ("batch", 8)), nets.value("scale", ())]
    nodes = [nets.node("Mul", ["x", "scale"], ["y"])]
    proto = nets.model(nodes, inputs, [nets.value("y", ("batch", 8))])

    def arrays(stream, size):
        return {"x": stream.random((size, 8), dtype=np.float32), "scale": np.array(1.5, np.float32)}

    agrees(proto, tmp_path, arrays, weights="int8")  # so that it is not joined


def test_memory_is_that_of_one_row_and_the_results(tmp_path):
    _, planned = row_by_row(variant_nets.pictures(), tmp_path, {"height": 16, "width": 16})
    row = 4 * (3 * 16 * 16 + 16 * 8 * 8)  # the input, and the result of a convolution
    assert row < planned < 12 * row


def test_rows_in_one_kernel_are_better(tmp_path):
    weights = {"w": np.ones((8, 4), np.float32)}
    proto = nets.model(
        [nets.node("MatMul", ["x", "w"], ["y"])],
        [nets.value("x", ("batch", 8))],
        [nets.value("y", ("batch", 4))],
        weights,
    )
    assert isinstance(prepared(proto, tmp_path)[0], Joined)


def test_convolutions_over_any_time_are_products(tmp_path):
    stream = np.random.default_rng(6)
    shapes = {"first": (16, 8, 3), "each": (16, 1, 5), "last": (4, 16, 1)}
    weights = {name: stream.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    nodes = [
        nets.node("Conv", ["x", "first"], ["a"], pads=[2, 2], dilations=[2]),
        nets.node("Relu", ["a"], ["b"]),
        nets.node("Conv", ["b", "each"], ["c"], pads=[4, 0], group=16),
        nets.node("Conv", ["c", "last"], ["y"]),
    ]
    proto = nets.model(nodes, [nets.value("x", (1, 8, "time"))], [nets.value("y", (1, 4, "time"))], weights)
    every, request = prepared(proto, tmp_path, "time")
    assert isinstance(every, Joined)
    run, _ = compiled_function(every.compiled, request.backend, tmp_path)
    for size in (1, 2, 5, 7, 11, GREATEST):
        arrays = {"x": np.random.default_rng(size).random((1, 8, size), dtype=np.float32)}
        np.testing.assert_allclose(run(arrays)[0], nets.run(proto, arrays)[0], rtol=1e-4, atol=1e-4)


def test_what_is_neither_is_refused_with_both_reasons(tmp_path):
    proto = variant_nets.pictures()
    proto.graph.node[-1].output[0] = "z"
    proto.graph.node.extend(
        [
            nets.node("ReduceMean", ["z"], ["m"], axes=[0], keepdims=1, name="mean"),
            nets.node("Sub", ["z", "m"], ["y"]),
        ]
    )
    with pytest.raises(InputError, match="net cannot be compiled for every size: Relu node 'd'") as caught:
        prepared(proto, tmp_path, dims={"height": 16, "width": 16})
    assert "ReduceMean node 'mean' mixes rows" in caught.value.details
    assert "--dim NAME=64,128,256" in caught.value.hint


def convolution_and(nodes, weights=None):
    """Return a network that cannot be joined, since it has a convolution, and computes more with its result `a`."""
    stream = np.random.default_rng(3)
    filters = {"w": stream.standard_normal((16, 3, 3, 3)).astype(np.float32), **(weights or {})}
    nodes = [nets.node("Conv", ["x", "w"], ["a"]), *nodes]
    return nets.model(nodes, [nets.value("x", ("batch", 3, 18, 18))], [nets.value("y", ("batch", 16, 16, 16))], filters)


SIZE_AS_A_NUMBER = [
    nets.node("Shape", ["x"], ["shape"], start=0, end=1),
    nets.node("Cast", ["shape"], ["count"], to=1),
    nets.node("Squeeze", ["count"], ["scalar"]),
]


@pytest.mark.parametrize("factor", ["count", "scalar"])
def test_a_network_that_computes_with_the_size_is_refused(factor, tmp_path):
    proto = convolution_and([*SIZE_AS_A_NUMBER, nets.node("Mul", ["a", factor], ["y"])])
    with pytest.raises(InputError) as caught:
        prepared(proto, tmp_path, weights="int8")
    assert "other values at other sizes" in caught.value.details


def test_a_limit_that_is_the_size_is_refused(tmp_path):
    """Of one row it would be another one."""
    nodes = [
        *SIZE_AS_A_NUMBER[:1],
        nets.node("Cast", ["shape"], ["count"], to=6),
        nets.node("Squeeze", ["count"], ["most"]),
        nets.node("Cast", ["a"], ["whole"], to=6),
        nets.node("Clip", ["whole", "", "most"], ["limited"]),
        nets.node("Cast", ["limited"], ["y"], to=1),
    ]
    with pytest.raises(InputError, match="differs between sizes"):
        prepared(convolution_and(nodes), tmp_path, weights="int8")


def test_a_network_that_changes_with_the_size_is_refused(tmp_path):
    """Rows beyond the tenth are cut off."""
    weights = {"zero": np.array([0]), "most": np.array([10]), "axis": np.array([0])}
    nodes = [nets.node("Slice", ["a", "zero", "most", "axis"], ["y"], name="cut")]
    with pytest.raises(InputError):
        prepared(convolution_and(nodes, weights), tmp_path, weights="int8")


def test_a_reduced_precision_is_computed_row_by_row(tmp_path):
    every, _ = prepared(variant_nets.pictures(), tmp_path, dims={"height": 16, "width": 16}, bfloat16=True)
    assert isinstance(every, ByRows)
