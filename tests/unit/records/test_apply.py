"""Records put to use: the same outputs from scheduled kernels, and only records of the very target and kernel."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.support import nets, tunings
from toolchain.backends.cpu.backend import Cpu
from toolchain.compile import compiler
from toolchain.compile.executable import lift_constants
from toolchain.models import importer, source
from toolchain.records import Key, Record, Records, best_bytes, parse
from toolchain.records.apply import apply
from toolchain.records.metaschedule import target_table


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A convolution whose weights a schedule may pack, and a dense layer."""
    stream = np.random.default_rng(0)
    weights = {"k": stream.standard_normal((32, 16, 3, 3)), "w": stream.standard_normal((32, 10))}
    proto = nets.model(
        [
            nets.node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
            nets.node("Relu", ["c"], ["r"]),
            nets.node("GlobalAveragePool", ["r"], ["g"]),
            nets.node("Flatten", ["g"], ["f"]),
            nets.node("MatMul", ["f", "w"], ["y"]),
        ],
        [nets.value("x", (1, 16, 14, 14))],
        [nets.value("y", (1, 10))],
        {name: value.astype(np.float32) for name, value in weights.items()},
    )
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    onnx.save(proto, path)
    return importer.import_model(source.load(str(path)))


@pytest.fixture(scope="module")
def backend(native):
    return Cpu(native, Cpu.template_names)


@pytest.fixture(scope="module")
def lowered(imported, backend):
    return backend.lower(imported.module)


@pytest.fixture(scope="module")
def lines(lowered, backend):
    return tuple(tunings.of_kernels(lowered, backend))


def changed(lines, **fields):
    return Records.collect(dataclasses.replace(line, **fields) if isinstance(line, Record) else line for line in lines)


def run(module, target, array):
    compiled = lift_constants(module)
    machine = relax.VirtualMachine(tvm.compile(compiled.module, target=target), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(value) for value in [array, *compiled.params.values()]))
    return (result if isinstance(result, tvm.runtime.Tensor) else result[0]).numpy(), compiled.params


def test_every_kernel_is_scheduled_and_the_outputs_stay(imported, lowered, native, backend, lines):
    applied = apply(lowered, backend, Records.collect(lines))
    assert applied.tasks == applied.tuned == len(lines) / 2 >= 3
    assert applied.skipped == ()
    array = np.random.default_rng(1).standard_normal((1, 16, 14, 14)).astype(np.float32)
    plain, _ = run(lowered, backend.target, array)
    tuned, params = run(applied.module, backend.target, array)
    np.testing.assert_allclose(tuned, plain, rtol=1e-4, atol=1e-4)
    assert (32, 16, 3, 3) not in {value.shape for value in params.values()}  # packed at compile time


def test_what_was_applied_is_enough_to_do_it_again(lowered, backend, lines):
    first = apply(lowered, backend, Records.collect([*lines, *changed(lines, samples_s=(9.0,), board="slow").lines()]))
    again = apply(lowered, backend, Records.collect(parse(first.records, "here")))
    assert again.records == first.records
    assert compiler._graph_json(again.module) == compiler._graph_json(first.module)


def test_records_of_other_kernels_are_left_out(lowered, backend, lines):
    records = Records.collect([*lines[:2], *changed(lines[:2], workload="abc").lines()])
    applied = apply(lowered, backend, records)
    assert applied.tuned == 1
    assert applied.records == best_bytes(records, Key.of(target_table(backend.target)), {lines[0].workload})
    assert b"abc" not in applied.records


@pytest.mark.parametrize(
    "fields",
    [
        {"target": tunings.OTHER},
        {"tvm": "0.1"},
        {"emulated": True},
        {"samples_s": (), "cause": "crash"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_was_found_for_another_is_not_applied(lowered, backend, lines, fields):
    applied = apply(lowered, backend, changed(lines, **fields))
    assert (applied.tuned, applied.records, applied.skipped) == (0, b"", ())
    assert applied.module.same_as(lowered)


def test_an_emulated_board_takes_the_records_of_emulators_alone(lowered, backend, lines):
    key = Key.of(target_table(backend.target), emulated=True)
    assert apply(lowered, backend, changed(lines, emulated=True), key=key).tuned == len(lines) / 2
    assert apply(lowered, backend, Records.collect(lines), key=key).tuned == 0


def test_records_of_a_model_are_for_those_who_ask_for_them(lowered, backend, lines):
    kinds = {"emulated": True, "modelled": "g610, 4 cores, 1000 MHz"}
    records = changed(lines, **kinds)
    table = target_table(backend.target)
    applied = apply(lowered, backend, records, key=Key.of(table, modelled=kinds["modelled"]))
    assert (applied.tuned, applied.modelled) == (len(lines) / 2, kinds["modelled"])
    others = (None, Key.of(table, emulated=True), Key.of(table, modelled="g52, 4 cores, 800 MHz"))
    assert [apply(lowered, backend, records, key=key).tuned for key in others] == [0, 0, 0]


def test_another_number_of_cores_is_another_target(lowered, native, lines):
    other = Cpu(dataclasses.replace(native, cores=native.cores + 1), Cpu.template_names)
    assert apply(lowered, other, Records.collect(lines)).tuned == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"trace": "no JSON"},
        {"trace": "[]"},
        {"trace": "{}"},
        {"trace": '[[["GetSBlock",[],["no_such_block","main"],["b0"]]],[]]'},
        {"trace": '[[["NoSuchStep",[],[],[]]],[]]'},
        {"candidate": "abc"},
    ],
    ids=lambda fields: next(iter(fields.values())),
)
def test_a_record_that_gives_no_such_schedule_is_skipped_and_named(lowered, backend, lines, fields):
    broken = [*changed(lines[:2], **fields).lines(), *lines[2:]]
    applied = apply(lowered, backend, Records.collect(broken))
    assert applied.skipped == (lines[0].name,)
    assert applied.tuned == applied.tasks - 1
    assert lines[0].workload.encode() not in applied.records


def test_the_intrinsics_are_never_imported():
    assert "tvm.s_tir.tensor_intrin.cuda" not in sys.modules


def test_a_kernel_that_was_fastest_as_it_is_stays_so(lowered, backend, lines):
    """A record may say that no schedule beats the backend's own."""
    trials = [line for line in lines if isinstance(line, Record)]
    defaults = [dataclasses.replace(trial, trace='"default"', samples_s=(1e-7,), index=100) for trial in trials]
    applied = apply(lowered, backend, Records.collect([*lines, *defaults]))
    assert (applied.tuned, applied.skipped, applied.choices) == (applied.tasks, (), {})
    assert tvm_ffi.structural_equal(applied.module, lowered)
    assert applied.records.count(b"default") == len(defaults)
