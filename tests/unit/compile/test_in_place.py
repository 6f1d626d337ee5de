"""Caches that a step writes in place: which states may be, and that a step then computes what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from tests.support import nets, state_nets
from toolchain import states
from toolchain.compile import in_place
from toolchain.models import importer, reference, source
from toolchain.models.request import Model

LENGTH, SIZE = 6, 4


@dataclass(frozen=True)
class Built:
    """A model with its states, and its module with writes in place."""

    imported: importer.ImportedModel
    written: in_place.InPlace

    @property
    def in_place(self) -> list[bool]:
        return [pair.in_place for pair in in_place.marked(self.imported, self.written.module)]


def built(proto: onnx.ModelProto, pairs: Mapping[str, str], folder: Path) -> Built:
    imported = importer.import_model(source.load_request(Model(nets.save(proto, folder), states=pairs)))
    return Built(imported, in_place.write_in_place(imported, imported.module))


def steps_by_tvm(model: Built, sequence: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a sequence whose states stay in their memory, and look that they do."""
    machine = relax.VirtualMachine(tvm.compile(model.written.module, target="llvm"), tvm.cpu())
    inputs, outputs = model.imported.source.inputs, [spec.name for spec in model.imported.outputs]
    pairs = model.imported.source.states
    caches = {
        spec.name: tvm.runtime.tensor(np.zeros(spec.shape, spec.dtype))
        for spec in inputs
        if any(pair.input == spec.name for pair in pairs)
    }
    rows = []
    for step in range(states.count_steps(sequence)):
        values = {name: tvm.runtime.tensor(np.ascontiguousarray(array[step])) for name, array in sequence.items()}
        results = dict(
            zip(outputs, machine["main"](*({**values, **caches}[spec.name] for spec in inputs)), strict=True)
        )
        for pair, is_written in zip(pairs, model.in_place, strict=True):
            new, old = results.pop(pair.output), caches[pair.input]
            assert (new.numpy() == old.numpy()).all() or not is_written
            caches[pair.input] = new
        rows.append({name: value.numpy() for name, value in results.items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def check_steps(model: Built, sequence: Mapping[str, np.ndarray]) -> None:
    loaded = model.imported.source
    expected = states.sequence(reference.open_model(loaded), loaded.inputs, loaded.states)(sequence)
    for name, value in steps_by_tvm(model, sequence).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("write", state_nets.WRITES)
def test_rows_of_a_cache_are_written_in_place(write, tmp_path):
    model = built(state_nets.transformer(write, layers=1), state_nets.states_of_transformer(1), tmp_path)
    assert model.in_place == [True, True]
    assert model.written.kept == ()
    check_steps(model, state_nets.steps_of_transformer(45))


def cache_net(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str] = ("present",),
    constants: Mapping[str, np.ndarray] | None = None,
    where: Sequence[int] = (1, 1),
) -> onnx.ModelProto:
    """Return a step with a cache of LENGTH x SIZE, and `y`, the sum of its rows."""
    sums = nets.node("ReduceSum", ["present", "first"], ["y"], keepdims=0)
    inputs = [nets.value("new", (1, SIZE)), nets.value("at", where, "int64"), nets.value("past", (LENGTH, SIZE))]
    results = [nets.value("y", (SIZE,)), *(nets.value(name, (LENGTH, SIZE)) for name in outputs)]
    return nets.model([*nodes, sums], inputs, results, {"first": np.array([0]), **(constants or {})})


def steps(positions: Sequence[int]) -> dict[str, np.ndarray]:
    new = np.random.default_rng(1).standard_normal((len(positions), 1, SIZE), dtype=np.float32)
    return {"new": new, "at": np.array(positions).reshape(-1, 1, 1)}


SCATTER = nets.node("ScatterND", ["past", "at", "new"], ["present"])


def test_positions_may_count_from_the_end(tmp_path):
    model = built(cache_net([SCATTER]), {"past": "present"}, tmp_path)
    assert model.in_place == [True]
    check_steps(model, steps([0, -1, 3, -LENGTH, 2, 3]))


def test_a_position_outside_writes_nothing(tmp_path):
    """The standard forbids it; memory beside the cache must stay as it is."""
    model = built(cache_net([SCATTER]), {"past": "present"}, tmp_path)
    outputs = steps_by_tvm(model, steps([0, LENGTH, 10**9, -LENGTH - 1, 2**62]))
    assert (outputs["y"][1:] == outputs["y"][0]).all()


def test_several_writes_in_a_row(tmp_path):
    nodes = [
        nets.node("ScatterND", ["past", "at", "new"], ["middle"]),
        nets.node("Neg", ["new"], ["other"]),
        nets.node("Add", ["at", "two"], ["later"]),
        nets.node("ScatterND", ["middle", "later", "other"], ["present"]),
    ]
    model = built(cache_net(nodes, constants={"two": np.array([[2]])}), {"past": "present"}, tmp_path)
    assert model.in_place == [True]
    check_steps(model, steps([0, 1, 2, 3, 0]))


def test_what_reads_a_transposed_cache_gets_the_new_one(tmp_path):
    nodes = [
        nets.node("Transpose", ["past"], ["columns"]),
        nets.node("Transpose", ["new"], ["column"]),
        nets.node("Expand", ["at", "every"], ["everywhere"]),
        nets.node("ScatterElements", ["columns", "everywhere", "column"], ["changed"], axis=1),
        nets.node("Transpose", ["changed"], ["present"]),
        nets.node("ReduceMax", ["changed", "last"], ["z"], keepdims=0),
    ]
    proto = cache_net(nodes, constants={"every": np.array([SIZE, 1]), "last": np.array([1])})
    proto.opset_import[0].version = 18
    proto.graph.output.append(nets.value("z", (SIZE,)))
    model = built(proto, {"past": "present"}, tmp_path)
    assert model.in_place == [True]
    check_steps(model, steps([0, 3, 5, 0]))


OTHERS = "past=present has two buffers: its value before the step has other readers than the write"


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason"),
    [
        # What is new depends on the cache; another output does; the cache itself is an output; the new one is two.
        ([nets.node("ReduceMax", ["past"], ["top"], axes=[0], keepdims=1), nets.node("Add", ["new", "top"], ["sum"]),
          nets.node("ScatterND", ["past", "at", "sum"], ["present"])], ("present",), OTHERS),
        ([SCATTER, nets.node("Neg", ["past"], ["z"])], ("present", "z"), OTHERS),
        ([SCATTER, nets.node("Identity", ["past"], ["z"])], ("present", "z"), OTHERS),
        ([SCATTER, nets.node("Identity", ["present"], ["z"])], ("present", "z"), "its next value is another output"),
        ([nets.node("ScatterND", ["past", "at", "new"], ["middle"]),
          nets.node("ScatterND", ["middle", "at", "new"], ["present"]), nets.node("Neg", ["middle"], ["z"])],
         ("present", "z"), "what one of several writes has made of it has other readers"),
        # No write at all, and one that adds: nothing is reported.
        ([nets.node("Add", ["past", "new"], ["present"])], ("present",), ""),
        ([nets.node("Neg", ["past"], ["other"]), nets.node("ScatterND", ["other", "at", "new"], ["present"])],
         ("present",), ""),
    ],
)  # fmt: skip
def test_a_cache_with_other_readers_keeps_two_buffers(nodes, outputs, reason, tmp_path):
    model = built(cache_net(nodes, outputs), {"past": "present"}, tmp_path)
    assert model.in_place == [False]
    assert model.written.module is model.imported.module
    assert [reason in line for line in model.written.kept] == ([True] if reason else [])
    check_steps(model, steps([0, 2, 1, 5]))


def test_sums_in_a_cache_are_not_written_in_place(tmp_path):
    added = helper.make_node("ScatterND", ["past", "at", "new"], ["present"], reduction="add")
    model = built(cache_net([added]), {"past": "present"}, tmp_path)
    assert (model.in_place, model.written.kept) == ([False], ())


def test_states_that_change_places(tmp_path):
    """Each is the next value of the other: neither may be written in place."""
    nodes = [
        nets.node("ScatterND", ["left", "at", "new"], ["right_out"]),
        nets.node("ScatterND", ["right", "at", "new"], ["left_out"]),
        nets.node("Sub", ["right_out", "left_out"], ["y"]),
    ]
    cache = (LENGTH, SIZE)
    inputs = [nets.value("new", (1, SIZE)), nets.value("at", (1, 1), "int64")]
    inputs += [nets.value(name, cache) for name in ("left", "right")]
    outputs = [nets.value(name, cache) for name in ("y", "left_out", "right_out")]
    pairs = {"left": "left_out", "right": "right_out"}
    model = built(nets.model(nodes, inputs, outputs), pairs, tmp_path)
    assert model.in_place == [False, False]
    check_steps(model, steps([0, 2, 1, 5]))
