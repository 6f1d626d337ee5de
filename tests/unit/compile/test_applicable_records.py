"""Which tuning records a build takes: the user's own, those that come with the toolchain, and for which board."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tvm

from tests.support import nets, qdq_nets, tunings
from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.vta.backend import Vta
from toolchain.compile import applicable_records, prepare
from toolchain.compile.applicable_records import RecordSources, record_key
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.models import importer, inputs, source
from toolchain.models.request import Model
from toolchain.records import RecordFile, Records, default_path, tasks
from toolchain.records.apply import Applied


def request(model, kind, *tell, **options):
    return BuildRequest(Model(model, {}, inputs.Source()), kind, *tell, **options)


def shipped(kind):
    return applicable_records.shipped_records(backend_of(kind))


# --- those that come with the toolchain ---


def like(native, mcpu, cores):
    return dataclasses.replace(native, target=dataclasses.replace(native.target, mcpu=mcpu), cores=cores)


def test_shipped_records_are_for_cpus_of_the_same_vectors_and_about_as_many_cores(native):
    found = shipped(like(native, "x86-64-v4", 2))
    assert found is not None
    assert len(found.trials) > 400
    assert shipped(like(native, "znver4", 4)) is not None
    assert len(shipped(like(native, "haswell", 2)).trials) > 100
    assert shipped(like(native, "x86-64-v4", 16)) is None
    assert shipped(like(native, "x86-64", 2)) is None
    assert shipped(board.load("rpi4").resolved()) is None


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("network", ["mobilenet_v2", "squeezenet_v1.1", "resnet-18"])
def test_shipped_records_are_for_layers_as_they_are_described_today(native, network, mcpu):
    wanted = request(network, like(native, mcpu, 2))
    lowered = wanted.backend.lower(importer.import_model(source.load(network)).module)
    applied = RecordSources(shipped=applicable_records.shipped_for(wanted)).apply(lowered, wanted)
    layers = [task for task in tasks.extract(lowered, wanted.backend) if task.layer]
    assert applied.shipped == len(layers) > 10
    assert set(applied.choices) == {task.layer for task in layers}


# --- the user's own ---


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLCHAIN_RECORDS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def of_this_board(native, **fields):
    return tunings.record(target=json.loads(record_key(Cpu(native)).target), **fields)


def test_where_there_are_none_one_sentence_names_the_folder(native, folder):
    told = []
    wanted = request("mlp", native, told.append)
    assert applicable_records.user_records(wanted) is None
    assert not applicable_records.has_records(wanted)
    assert told == []  # who looks says nothing: a build looks before its work, and when it begins
    line = applicable_records.summary(
        Applied(tvm.IRModule(), tasks=5, shipped=3), RecordSources(shipped=Records.collect()), wanted
    )
    assert line.startswith("tuning records for 3 of 5 kernels: 3 from the toolchain, none of yours in ")
    assert str(folder / "data") in line
    none = applicable_records.summary(Applied(tvm.IRModule()), RecordSources(), wanted)
    assert none.startswith(f"tuning records: none of yours in {folder / 'data'}")
    assert none.endswith(f", and the toolchain has none for {native.name}")


@pytest.mark.parametrize("without", [{"tuned": False}, {"records": Path("shipped")}])
def test_of_records_that_nobody_wants_nothing_is_told(native, folder, without):
    assert (
        applicable_records.summary(Applied(tvm.IRModule(), tasks=5), RecordSources(), request("mlp", native, **without))
        == ""
    )


def test_the_boards_own_are_found_unless_they_are_left_out(native, folder):
    RecordFile(default_path(native.name)).append([of_this_board(native)])
    assert applicable_records.has_records(request("mlp", native))
    assert len(applicable_records.user_records(request("mlp", native)).trials) == 1
    assert applicable_records.user_records(request("mlp", native, tuned=False)) is None
    assert applicable_records.user_records(request("mlp", native, records=Path("shipped"))) is None


def test_those_of_an_emulator_are_asked_for(native, folder):
    RecordFile(default_path(native.name)).append([of_this_board(native, emulated=True)])
    assert not applicable_records.has_records(request("mlp", native))
    assert applicable_records.has_records(request("mlp", native, emulated=True))


def test_those_that_are_named_must_suit_the_board(native, folder):
    path = folder / "others.jsonl"
    RecordFile(path).append([tunings.record(target=tunings.OTHER)])
    with pytest.raises(InputError, match=f"has no records for {native.name}") as caught:
        applicable_records.user_records(request("mlp", native, records=path))
    assert "toolchain tune" in caught.value.hint


def test_whoever_wants_shipped_ones_alone_is_told_where_there_are_none(native):
    told = []
    alone = request("mlp", dataclasses.replace(native, cores=999), told.append, records=Path("shipped"))
    assert not applicable_records.has_records(alone)
    assert applicable_records.shipped_for(alone) is None
    assert told == [f"the toolchain includes no tuning records for {native.name}"]


def test_nothing_known_changes_nothing(native):
    module = tvm.IRModule()
    assert RecordSources().apply(module, request("mlp", native)).module.same_as(module)


@pytest.mark.parametrize(
    ("applied", "emulated", "words"),
    [
        ({"tuned": 1, "shipped": 2}, False, ("--records records.jsonl",)),
        ({"tuned": 1}, True, ("--records records.jsonl", "--emulated")),
        ({"shipped": 2}, False, ("--records shipped",)),
        ({}, True, ("--no-records",)),
    ],
)
def test_the_options_that_apply_the_same_again(applied, emulated, words):
    assert applicable_records.options(Applied(tvm.IRModule(), **applied), emulated=emulated) == words


def test_kernels_for_fewer_threads_are_chosen_again():
    options = applicable_records.options(Applied(tvm.IRModule()), emulated=False, threads=1)
    assert options == ("--no-records", "--threads 1")


def test_records_of_a_model_are_asked_for_by_name():
    applied = Applied(tvm.IRModule(), tuned=1)
    assert applicable_records.options(applied, emulated=True, modelled=True) == (
        "--records records.jsonl",
        "--modelled",
    )
    rk3588 = board.load("rk3588").resolved()
    wanted = applicable_records.requested_key(request("mlp", rk3588, emulated=True, modelled=True))
    assert wanted.modelled == "g610, 4 cores, 1000 MHz"
    assert wanted != applicable_records.requested_key(request("mlp", rk3588, emulated=True))


def test_of_two_compilers_of_a_model_the_newest_ones_records_are_taken(folder):
    rk3588, machine = board.load("rk3588").resolved(), "g610, 4 cores, 1000 MHz"
    wanted = request("mlp", rk3588, emulated=True, modelled=True)
    target = json.loads(applicable_records.requested_key(wanted).target)

    def of(by, **fields):
        return tunings.record(target=target, emulated=True, modelled=by, **fields)

    old, new = of(f"{machine}; Mesa 25.0.7-2, k, formula 1", time=9.0), of(f"{machine}; Mesa 25.0.10-1, k, formula 1")
    later = of(f"{machine}; Mesa 25.0.10-1, k, formula 2", time=5.0)
    foreign = of("g610, 2 cores, 1000 MHz; Mesa 26.0, k, formula 1")
    assert applicable_records.matching_key(wanted, Records.collect([new, old, foreign])) == new.key
    assert applicable_records.matching_key(wanted, Records.collect([later, new, old])) == later.key
    assert applicable_records.matching_key(request("mlp", rk3588, emulated=True), Records.collect([new])).modelled == ""
    RecordFile(folder / "own.jsonl").append([foreign])
    with pytest.raises(InputError, match="no records for rk3588"):
        applicable_records.user_records(dataclasses.replace(wanted, records=folder / "own.jsonl"))
    RecordFile(folder / "own.jsonl").append([old])
    assert applicable_records.user_records(dataclasses.replace(wanted, records=folder / "own.jsonl")) is not None


# --- accelerators ---


VTA = board.load("vta-sim").resolved()


@pytest.mark.parametrize("emulated", [False, True])
def test_records_of_one_accelerator_are_not_applied_to_another(tmp_path, emulated):
    """Even of the same CPU: one of them is simulated."""
    path = nets.save(qdq_nets.two_convolutions(), tmp_path)
    made = prepare.quantize_if_needed(source.load(path), request(path, VTA)).source
    lowered = Vta(VTA).lower(importer.import_model(made).module)
    lines = tunings.of_kernels(lowered, Vta(VTA), emulated=True)
    found = RecordSources(Records.collect(lines))
    pynq = dataclasses.replace(VTA, target=dataclasses.replace(VTA.target, device="vta-pynq-z1"))
    other = board.load("pynq-z1").resolved()
    assert bool(found.apply(lowered, request(path, VTA, emulated=emulated)).tuned) == emulated
    assert found.apply(lowered, request(path, pynq, emulated=emulated)).tuned == 0
    assert found.apply(lowered, request(path, other, emulated=emulated)).tuned == 0
