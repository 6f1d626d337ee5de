"""The stages in their order: which tuning records a build takes, and what it says about them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support import bundles, nets, tunings
from toolchain import board, bundle
from toolchain.backends.cpu.backend import Cpu
from toolchain.bundle import manifest
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.models import importer, inputs, reference, source
from toolchain.models.request import Model
from toolchain.pipeline.source import BundleSource
from toolchain.records import Record, RecordFile, Records, default_path


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "dense.onnx"
    onnx.save(bundles.dense(16, 8), path)
    return path


@pytest.fixture(scope="module")
def lines(dense, native):
    imported = importer.import_model(source.load(str(dense)))
    return tuple(tunings.of_kernels(Cpu(native).lowered(imported.module), Cpu(native)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, which records of this machine's board may be put into."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLCHAIN_RECORDS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def request(model, kind, tell, **options):
    return BuildRequest(Model(str(model), {}, inputs.Source()), kind, tell, **options)


def build(dense, native, folder, **options):
    told = []
    made = BundleSource(request(dense, native, told.append, **options)).build(folder / "bundle")
    return made, "\n".join(told)


def emulated(lines):
    return [dataclasses.replace(one, emulated=True) if isinstance(one, Record) else one for one in lines]


def test_without_records_a_bundle_is_untuned(dense, native, folder):
    made, told = build(dense, native, folder)
    assert made.manifest.records == manifest.Tuned()
    assert made.manifest.command.endswith("--seed 0 --no-records")
    assert made.records is None
    assert f"none of yours in {folder / 'data' / 'edge-toolchain' / 'records'}" in told
    assert told.count("tuning records") == 1


def test_the_boards_own_records_are_applied(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(lines)
    made, told = build(dense, native, folder)
    assert made.manifest.records.tuned == made.manifest.records.tasks == len(lines) / 2
    count = len(lines) // 2
    assert f"tuning records for {count} of {count} kernels: {count} from {default_path(native.name)}" in told
    assert made.manifest.command.endswith("--seed 0 --records records.jsonl")


def test_from_another_folder_of_the_project_the_same_records_are_applied(dense, native, folder, lines, monkeypatch):
    (folder / "devices.toml").touch()
    RecordFile(default_path(native.name)).append(lines)
    here, told = build(dense, native, folder)
    assert f" from records/{native.name}.jsonl" in told
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder / "deep")
    there, told = build(dense, native, folder)
    assert there.digest == here.digest
    assert f" from {folder / 'records' / native.name}.jsonl" in told


def test_no_records_leaves_them_out(dense, native, folder, lines):
    plain, _ = build(dense, native, folder)
    RecordFile(default_path(native.name)).append(lines)
    made, _ = build(dense, native, folder, tuned=False)
    assert made.digest == plain.digest


def test_whoever_asks_for_shipped_records_alone_is_told_that_none_suit_the_board(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(lines)
    made, told = build(dense, dataclasses.replace(native, cores=999), folder, records=Path("shipped"))
    assert f"the toolchain includes no tuning records for {native.name}" in told
    assert made.manifest.records == manifest.Tuned()


def test_the_named_records_of_a_bundle_make_it_again(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(lines)
    first, _ = build(dense, native, folder)
    kept = folder / "kept.jsonl"
    first.records.rename(kept)
    default_path(native.name).unlink()
    again, _ = build(dense, native, folder, records=kept)
    assert again.digest == first.digest
    assert again.records.read_bytes() == kept.read_bytes()


def test_records_of_an_emulator_are_for_emulators(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(emulated(lines))
    made, told = build(dense, native, folder)
    assert made.manifest.records == manifest.Tuned()
    assert "which has none for this target" in told
    made, _ = build(dense, native, folder, emulated=True)
    assert made.manifest.records.tuned == len(lines) / 2
    assert made.manifest.command.endswith("--records records.jsonl --emulated")


def test_the_boards_own_records_may_be_for_other_targets(dense, native, folder):
    RecordFile(default_path(native.name)).append([tunings.record(target=tunings.OTHER)])
    made, told = build(dense, native, folder)
    assert made.manifest.records == manifest.Tuned()
    assert "which has none for this target" in told


@pytest.mark.parametrize(
    "found", [[], [tunings.record(target=tunings.OTHER)], [tunings.record(tvm="0.1")]], ids=["none", "target", "tvm"]
)
def test_named_records_of_other_targets_are_refused(dense, native, folder, found):
    path = folder / "other.jsonl"
    path.write_bytes(b"")
    RecordFile(path).append(found)
    with pytest.raises(InputError, match=f"has no records for {native.name}") as caught:
        build(dense, native, folder, records=path)
    assert "needed: " in caught.value.details
    assert caught.value.details.count("found: ") == len(Records.collect(found).keys)


def test_named_records_must_exist(dense, native, folder):
    with pytest.raises(InputError, match="cannot read the tuning records"):
        build(dense, native, folder, records=folder / "none.jsonl")


def test_a_damaged_file_stops_the_build_before_the_model_is_imported(dense, native, folder):
    path = default_path(native.name)
    path.parent.mkdir(parents=True)
    path.write_text("a note\n")
    told = []
    with pytest.raises(InputError, match=r"line 1 of .* is not a valid tuning record"):
        BundleSource(request(dense, native, told.append)).build(folder / "bundle")
    assert told == []


# --- accelerators of int8 ---


VTA = board.load("vta-sim").resolved()


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory):
    """Two convolutions on floats, of which the second becomes int8."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((16, 16, 1, 1)).astype(np.float32) / 4 for name in ("w", "v")}
    proto = nets.model(
        [nets.node("Conv", ["x", "w"], ["c"]), nets.node("Conv", ["c", "v"], ["y"])],
        [nets.value("x", (1, 16, 6, 6))],
        [nets.value("y", (1, 16, 6, 6))],
        weights,
    )
    return nets.save(proto, tmp_path_factory.mktemp("convolutions"))


@pytest.fixture
def letters(monkeypatch):
    """Note for each session of the reference whether it computes each operator as the file has it."""
    seen, opened = [], reference.open_model

    def noted(*given, unoptimized=False):
        seen.append(unoptimized)
        return opened(*given, unoptimized=unoptimized)

    monkeypatch.setattr(reference, "open_model", noted)
    return seen


def test_for_an_int8_accelerator_a_network_and_its_reference_are_quantized(convolutions, folder, letters):
    made, told = build(convolutions, VTA, folder)
    assert letters == [True]
    assert "quantizing it to int8" in told
    assert "running it with onnxruntime" in told
    assert "without optimisations" in told
    expected = bundle.Reference.read(made.reference)
    (mine,) = expected.outputs.values()
    (floats,) = reference.run(source.load(convolutions), expected.inputs).values()
    steps = mine / np.abs(mine[mine != 0]).min()
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert 0 < np.abs(mine - floats).max() < 0.1 * np.abs(floats).max()
    assert made.manifest.modelled.kernels == 2


def test_without_its_template_a_network_stays_on_floats(convolutions, folder, letters):
    made, told = build(convolutions, VTA, folder, without=("vta",))
    assert letters == [False, True]  # the second tells how far the reference is from itself
    assert "quantizing" not in told
    assert "without optimisations" not in told
    assert made.manifest.modelled is None
    assert "--without vta" in made.manifest.command


def test_a_network_that_it_cannot_quantize_is_the_cpus(dense, folder):
    made, told = build(dense, VTA, folder)
    assert "dense has no convolution that can be quantized: the whole model runs on the CPU" in told
    assert made.manifest.modelled is None
