"""A network for every size of a dimension in one module."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets, text_nets
from toolchain import board
from toolchain.compile import executable, open_size
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.models import importer, source
from toolchain.models.request import Model
from toolchain.tensors import TensorSpec
from toolchain.variants import Dynamic

SIZES = (24, 23, 16, 11, 8, 5, 3, 2)


def joined(proto, folder, dimension, others=()):
    """Return a model's module for every size up to 24, and this machine's backend."""
    path = nets.save(proto, folder)
    backend = BuildRequest(Model(path), board.load("local").resolved()).backend
    sources = [source.load_request(Model(path, dims={**dict(others), dimension: size})) for size in SIZES]
    lowered = [backend.lower(importer.import_model(each).module) for each in sources]
    return open_size.join(lowered, SIZES, backend, "net"), backend


def agrees(proto, folder, dimension, arrays_of, others=()) -> None:
    """Compare the results of sizes that were not compiled for with ONNX Runtime's."""
    compiled, backend = joined(proto, folder, dimension, others)
    code = executable.compile_module(compiled.module, backend.target)
    code.executable.export_library(str(folder / "net.so"))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "net.so")), tvm.cpu())
    params = [tvm.runtime.tensor(param) for param in compiled.params.values()]
    for size in (1, 2, 5, 7, 16, 17, 22, 24):
        arrays = arrays_of(size)
        result = machine["main"](*map(tvm.runtime.tensor, arrays.values()), *params)
        values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        for value, expected in zip(values, nets.run(proto, arrays), strict=True):
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-4, atol=1e-5, err_msg=f"size {size}")


def tokens(size):
    stream = np.random.default_rng(size)
    return {"ids": stream.integers(0, 50, (1, size)), "mask": np.ones((1, size), np.int64)}


def test_the_sizes_that_are_compared():
    assert open_size.sizes_to_compare(1, 512) == (512, 511, 341, 255, 171, 103, 64, 3, 2)
    assert open_size.sizes_to_compare(1, 8) == (8, 7, 5, 3, 2, 6, 4)
    assert open_size.sizes_to_compare(100, 110) == (110, 109, 106, 104, 103, 102, 101)


def test_an_encoder_of_any_length(tmp_path):
    agrees(text_nets.encoder(), tmp_path, "length", tokens, {"batch": 1})


def test_operators_without_templates(tmp_path):
    nodes = [
        nets.node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        nets.node("Sub", ["x", "m"], ["d"]),
        nets.node("Softmax", ["d"], ["s"], axis=1),
        nets.node("Transpose", ["s"], ["t"], perm=[0, 2, 1]),
        nets.node("MatMul", ["s", "t"], ["p"]),
        nets.node("Concat", ["x", "d"], ["y"], axis=1),
    ]
    outputs = [nets.value("p", (2, "n", "n")), nets.value("y", (2, "n2", 5))]
    proto = nets.model(nodes, [nets.value("x", (2, "n", 5))], outputs)
    agrees(proto, tmp_path, "n", lambda size: {"x": np.random.default_rng(1).random((2, size, 5), dtype=np.float32)})


def test_a_perceptron_with_any_batch(tmp_path):
    stream = np.random.default_rng(3)
    weights = {
        name: stream.standard_normal(shape).astype(np.float32) / 8 for name, shape in (("a", (40, 70)), ("b", (70, 5)))
    }
    nodes = [
        nets.node("MatMul", ["x", "a"], ["h"]),
        nets.node("Relu", ["h"], ["r"]),
        nets.node("MatMul", ["r", "b"], ["z"]),
        nets.node("Softmax", ["z"], ["y"], axis=1),
    ]
    proto = nets.model(nodes, [nets.value("x", ("n", 40))], [nets.value("y", ("n", 5))], weights)
    agrees(proto, tmp_path, "n", lambda size: {"x": np.random.default_rng(size).random((size, 40), dtype=np.float32)})


@pytest.mark.parametrize(("cell", "gates", "batch"), [("LSTM", 4, 1), ("LSTM", 4, 6), ("GRU", 3, 2), ("RNN", 1, 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_recurrence_over_any_number_of_steps(cell, gates, batch, direction, tmp_path):
    stream = np.random.default_rng(4)
    ways = 2 if direction == "bidirectional" else 1
    shapes = {"w": (ways, gates * 24, 9), "r": (ways, gates * 24, 24), "b": (ways, 2 * gates * 24)}
    weights = {name: stream.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    more = {"linear_before_reset": 1} if cell == "GRU" else {}
    names = {"inputs": ["x", "w", "r", "b"], "outputs": ["every", "last"]}
    nodes = [nets.node(cell, **names, hidden_size=24, direction=direction, **more)]
    outputs = [nets.value("every", ("n", ways, batch, 24)), nets.value("last", (ways, batch, 24))]
    proto = nets.model(nodes, [nets.value("x", ("n", batch, 9))], outputs, weights)

    def steps(size):
        return {"x": np.random.default_rng(size).random((size, batch, 9), dtype=np.float32)}

    agrees(proto, tmp_path, "n", steps)


def test_a_recurrence_of_as_many_sequences_as_steps_is_refused(tmp_path):
    stream = np.random.default_rng(4)
    weights = {
        name: stream.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (1, 48, 8)), ("r", (1, 48, 16)))
    }
    nodes = [nets.node("GRU", ["x", "w", "r"], ["every"], hidden_size=16, name="cell")]
    outputs = [nets.value("every", ("n", 1, "n", 16))]
    proto = nets.model(nodes, [nets.value("x", ("n", "n", 8))], outputs, weights)
    with pytest.raises(InputError, match="GRU node 'cell'") as caught:
        joined(proto, tmp_path, "n")
    assert "number of sequences" in caught.value.details


def test_memory_is_planned_for_the_greatest_size(tmp_path):
    compiled, backend = joined(text_nets.encoder(), tmp_path, "length", {"batch": 1})
    results = 4 * (24 + 1) * 32
    planned = executable.compile_module(compiled.module, backend.target, results=results).activations["main"]
    assert planned > results + 24 * 96 * 4


@pytest.mark.parametrize("limit", [10, 22])
def test_a_size_that_changes_another_way_is_refused_by_node(limit, tmp_path):
    """As many rows as there are, but not more than a limit."""
    weights = {"zero": np.array([0]), "most": np.array([limit]), "axis": np.array([0])}
    nodes = [
        nets.node("Slice", ["x", "zero", "most", "axis"], ["a"], name="cut"),
        nets.node("ReduceSum", ["a"], ["y"], keepdims=1),
    ]
    proto = nets.model(nodes, [nets.value("x", ("n", 4))], [nets.value("y", (1, 1))], weights)
    with pytest.raises(InputError, match="cannot be compiled for every size: ") as caught:
        joined(proto, tmp_path, "n")
    assert "--dim NAME=64,128,256" in caught.value.hint


def test_constants_with_other_values_are_refused(tmp_path):
    """The size as a number that the network computes with."""
    nodes = [
        nets.node("Shape", ["x"], ["shape"]),
        nets.node("Cast", ["shape"], ["sizes"], to=1),
        nets.node("Mul", ["x", "sizes"], ["y"]),
    ]
    proto = nets.model(nodes, [nets.value("x", ("n", 2))], [nets.value("y", ("n", 2))])
    with pytest.raises(InputError, match="cannot be compiled for every size"):
        joined(proto, tmp_path, "n")


def test_outputs_must_be_in_proportion():
    dynamic = Dynamic("n", 1, 9)
    shapes = {1: (1, 3), 4: (4, 3), 9: (9, 3)}
    outputs = {size: [TensorSpec("y", shape, "float32")] for size, shape in shapes.items()}
    open_size.check_outputs(dynamic, outputs, "net")
    for shape in ((1, 2), (1,)):
        wrong = {**outputs, 1: [TensorSpec("y", shape, "float32")]}
        with pytest.raises(InputError, match="output y of net has a shape that is not in proportion to n"):
            open_size.check_outputs(dynamic, wrong, "net")
