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
    return tuple(tunings.of_kernels(Cpu(native).lower(imported.module), Cpu(native)))


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
    progress = []
    built = BundleSource(request(dense, native, progress.append, **options)).build(folder / "bundle")
    return built, "\n".join(progress)


def emulated(lines):
    return [dataclasses.replace(line, emulated=True) if isinstance(line, Record) else line for line in lines]


def test_without_records_a_bundle_is_untuned(dense, native, folder):
    built, progress = build(dense, native, folder)
    assert built.manifest.records == manifest.Tuned()
    assert built.manifest.command.endswith("--seed 0 --no-records")
    assert built.records is None
    assert f"none of yours in {folder / 'data' / 'edge-toolchain' / 'records'}" in progress
    assert progress.count("tuning records") == 1


def test_the_boards_own_records_are_applied(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(lines)
    built, progress = build(dense, native, folder)
    assert built.manifest.records.tuned == built.manifest.records.tasks == len(lines) / 2
    count = len(lines) // 2
    assert f"tuning records for {count} of {count} kernels: {count} from {default_path(native.name)}" in progress
    assert built.manifest.command.endswith("--seed 0 --records records.jsonl")


def test_from_another_folder_of_the_project_the_same_records_are_applied(dense, native, folder, lines, monkeypatch):
    (folder / "devices.toml").touch()
    RecordFile(default_path(native.name)).append(lines)
    here, progress = build(dense, native, folder)
    assert f" from records/{native.name}.jsonl" in progress
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder / "deep")
    there, progress = build(dense, native, folder)
    assert there.digest == here.digest
    assert f" from {folder / 'records' / native.name}.jsonl" in progress


def test_no_records_leaves_them_out(dense, native, folder, lines):
    plain, _ = build(dense, native, folder)
    RecordFile(default_path(native.name)).append(lines)
    built, _ = build(dense, native, folder, tuned=False)
    assert built.digest == plain.digest


def test_whoever_asks_for_shipped_records_alone_is_told_that_none_suit_the_board(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(lines)
    built, progress = build(dense, dataclasses.replace(native, cores=999), folder, records=Path("shipped"))
    assert f"the toolchain includes no tuning records for {native.name}" in progress
    assert built.manifest.records == manifest.Tuned()


def test_the_named_records_of_a_bundle_make_it_again(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(lines)
    first, _ = build(dense, native, folder)
    kept_records = folder / "kept.jsonl"
    first.records.rename(kept_records)
    default_path(native.name).unlink()
    again, _ = build(dense, native, folder, records=kept_records)
    assert again.digest == first.digest
    assert again.records.read_bytes() == kept_records.read_bytes()


def test_records_of_an_emulator_are_for_emulators(dense, native, folder, lines):
    RecordFile(default_path(native.name)).append(emulated(lines))
    built, progress = build(dense, native, folder)
    assert built.manifest.records == manifest.Tuned()
    assert "which has none for this target" in progress
    built, _ = build(dense, native, folder, emulated=True)
    assert built.manifest.records.tuned == len(lines) / 2
    assert built.manifest.command.endswith("--records records.jsonl --emulated")


def test_the_boards_own_records_may_be_for_other_targets(dense, native, folder):
    RecordFile(default_path(native.name)).append([tunings.record(target=tunings.OTHER)])
    built, progress = build(dense, native, folder)
    assert built.manifest.records == manifest.Tuned()
    assert "which has none for this target" in progress


@pytest.mark.parametrize(
    "other_records",
    [[], [tunings.record(target=tunings.OTHER)], [tunings.record(tvm="0.1")]],
    ids=["none", "target", "tvm"],
)
def test_named_records_of_other_targets_are_refused(dense, native, folder, other_records):
    path = folder / "other.jsonl"
    path.write_bytes(b"")
    RecordFile(path).append(other_records)
    with pytest.raises(InputError, match=f"has no records for {native.name}") as caught:
        build(dense, native, folder, records=path)
    assert "needed: " in caught.value.details
    assert caught.value.details.count("found: ") == len(Records.collect(other_records).keys)


def test_named_records_must_exist(dense, native, folder):
    with pytest.raises(InputError, match="cannot read the tuning records"):
        build(dense, native, folder, records=folder / "none.jsonl")


def test_a_damaged_file_stops_the_build_before_the_model_is_imported(dense, native, folder):
    path = default_path(native.name)
    path.parent.mkdir(parents=True)
    path.write_text("a note\n")
    progress = []
    with pytest.raises(InputError, match=r"line 1 of .* is not a valid tuning record"):
        BundleSource(request(dense, native, progress.append)).build(folder / "bundle")
    assert progress == []


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
    modes, opened = [], reference.open_model

    def noted(*arguments, unoptimized=False):
        modes.append(unoptimized)
        return opened(*arguments, unoptimized=unoptimized)

    monkeypatch.setattr(reference, "open_model", noted)
    return modes


def test_for_an_int8_accelerator_a_network_and_its_reference_are_quantized(convolutions, folder, letters):
    built, progress = build(convolutions, VTA, folder)
    assert letters == [True]
    assert "quantizing it to int8" in progress
    assert "running it with onnxruntime" in progress
    assert "without optimisations" in progress
    expected = bundle.Reference.read(built.reference)
    (mine,) = expected.outputs.values()
    (floats,) = reference.run(source.load(convolutions), expected.inputs).values()
    steps = mine / np.abs(mine[mine != 0]).min()
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert 0 < np.abs(mine - floats).max() < 0.1 * np.abs(floats).max()
    assert built.manifest.modelled.kernels == 2


def test_without_its_template_a_network_stays_on_floats(convolutions, folder, letters):
    built, progress = build(convolutions, VTA, folder, without=("vta",))
    assert letters == [False, True]  # the second tells how far the reference is from itself
    assert "quantizing" not in progress
    assert "without optimisations" not in progress
    assert built.manifest.modelled is None
    assert "--without vta" in built.manifest.command


def test_a_network_that_it_cannot_quantize_is_the_cpus(dense, folder):
    built, progress = build(dense, VTA, folder)
    assert "dense has no convolution that can be quantized: the whole model runs on the CPU" in progress
    assert built.manifest.modelled is None
