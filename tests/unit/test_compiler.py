"""The compiler: a bundle whose parts fit together, the same bytes every time, and faults that name their cause."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests import nets, tunings
from tests.unit import qdq_nets
from toolchain import board, bundle, compiler, cross, files, inputs, model, quantize, tensors
from toolchain.backends import cpu, vta
from toolchain.backends._attributes import EXACT
from toolchain.backends.vta.layers import is_layer
from toolchain.board import Target
from toolchain.errors import BuildError, InputError
from toolchain.tuning import tasks
from toolchain.tuning.records import RecordFile, Records

CONVOLUTION = """
from pathlib import Path
import sys
from toolchain import board, compiler, cross, model
source = model.load("squeezenet_v1.1")
kind = board.load("local").resolved()
made = compiler.build(model.import_model(source), kind, cross.choose(kind), Path(sys.argv[1]), command="c")
print(made.digest)
"""


def build(proto, native, folder, **options):
    path = folder / "net.onnx"
    onnx.save(proto, path)
    imported = model.import_model(model.load(str(path)))
    driver = cross.choose(native)
    return compiler.build(imported, native, driver, folder / "bundle", command="toolchain build net.onnx", **options)


def test_two_processes_in_two_folders_build_the_same_bundle(tmp_path):
    digests = [
        subprocess.run(
            [sys.executable, "-c", CONVOLUTION, str(folder)],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed, folder in [("1", tmp_path / "a" / "bundle"), ("2", tmp_path / "else" / "where")]
    ]
    assert digests[0] == digests[1]


def test_the_weights_are_params_and_not_in_library_or_graph(native, tmp_path):
    marks = np.linspace(0.123, 0.987, 12, dtype=np.float32).reshape(3, 4)
    proto = nets.model(
        [nets.node("MatMul", ["x", "w"], ["y"])], [nets.value("x", (2, 3))], [nets.value("y", (2, 4))], {"w": marks}
    )
    made = build(proto, native, tmp_path, without=cpu.TEMPLATES)  # which would pack them
    params = tensors.load(made.folder / bundle.PARAMS)
    assert [params[name].tolist() for name in made.manifest.params_order] == [marks.tolist()]
    for name in (bundle.LIBRARY, bundle.GRAPH):
        assert marks.tobytes() not in (made.folder / name).read_bytes()


def test_the_manifest_says_what_the_bundle_needs(tiny, native):
    manifest = tiny.manifest
    assert (manifest.machine, manifest.triple) == (native.machine, native.triple)
    assert [str(spec) for spec in manifest.inputs] == ["x 1x8 float32"]
    assert [str(spec) for spec in manifest.outputs] == ["y 1x4 float32"]
    assert manifest.target["kind"] == "llvm"
    assert manifest.versions["tvm"] == "0.27.0.post1"
    assert manifest.versions["tvm_ffi"] == "0.1.14.post1"
    assert manifest.compiler["compiler"]
    assert {"sse2"} <= set(manifest.cpu_features) or native.machine != "x86_64"


def test_the_graph_is_there_for_machines_and_for_people(tiny):
    assert "nodes" in json.loads((tiny.folder / bundle.GRAPH).read_bytes())
    assert "def main" in (tiny.folder / bundle.GRAPH_TEXT).read_text()


def test_a_folder_with_something_else_is_left_alone(native, tmp_path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="something else"):
        build(nets.relu(), native, tmp_path)
    assert (tmp_path / "bundle" / "thesis.txt").read_text() == "mine"


def test_an_older_bundle_is_replaced(native, tmp_path):
    first = build(nets.relu((2, 3)), native, tmp_path)
    second = build(nets.relu((4, 5)), native, tmp_path)
    assert first.digest != second.digest
    assert bundle.load(tmp_path / "bundle").digest == second.digest
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_a_failed_build_leaves_the_older_bundle_and_nothing_else(native, tmp_path, monkeypatch):
    first = build(nets.relu((2, 3)), native, tmp_path)

    def refuse(*_arguments, **_options):
        raise BuildError("the linker is out of order")

    monkeypatch.setattr("toolchain.cross.HostCross.link", refuse)
    with pytest.raises(BuildError, match="out of order"):
        build(nets.relu((4, 5)), native, tmp_path)
    assert bundle.load(tmp_path / "bundle").digest == first.digest
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_an_unknown_cpu_is_refused_with_those_there_are(native):
    board = dataclasses.replace(native, target=Target(mcpu="z80"))
    with pytest.raises(InputError, match="z80") as caught:
        cpu.target(board)
    assert "znver4" in caught.value.details


def test_a_missing_compiler_is_a_build_error(native, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="not installed") as caught:
        build(nets.relu(), native, tmp_path)
    assert "doctor" in caught.value.hint


# --- tuning records --------------------------------------------------------------------------------------------


def convolution():
    weights = {"k": np.random.default_rng(0).standard_normal((16, 8, 3, 3)).astype(np.float32)}
    return nets.model(
        [nets.node("Conv", ["x", "k"], ["c"]), nets.node("Relu", ["c"], ["y"])],
        [nets.value("x", (1, 8, 10, 10))],
        [nets.value("y", (1, 16, 8, 8))],
        weights,
    )


def records_of(proto, native, folder):
    path = folder / "net.onnx"
    onnx.save(proto, path)
    lowered = cpu.lowered(model.import_model(model.load(str(path))).module, native)
    return Records.collect(tunings.of_kernels(lowered, cpu.target(native), cpu.templates(native)))


def test_records_are_applied_and_named_in_the_manifest(native, tmp_path):
    records, told = records_of(convolution(), native, tmp_path), []
    made = build(convolution(), native, tmp_path, records=records, tell=told.append)
    count = len(records.workloads)  # the convolution, and perhaps changes of layout around it
    assert told == [f"applied tuning records for {count} of {count} tasks"]
    assert made.manifest.records == bundle.Tuned(files.sha256_file(made.records), tasks=count, tuned=count)
    assert made.manifest.command == "toolchain build net.onnx --records records.jsonl"
    assert made.manifest.target["num-cores"] == native.cores


def test_the_records_in_a_bundle_make_it_again(native, tmp_path):
    records = records_of(convolution(), native, tmp_path)
    first = build(convolution(), native, tmp_path, records=records)
    (tmp_path / "again").mkdir()
    again = build(convolution(), native, tmp_path / "again", records=RecordFile(first.records).read())
    assert again.digest == first.digest


def test_records_that_fit_nothing_leave_the_bundle_untuned(native, tmp_path):
    first = build(nets.relu((2, 3)), native, tmp_path)
    other = records_of(convolution(), native, tmp_path)
    told = []
    (tmp_path / "again").mkdir()
    again = build(nets.relu((2, 3)), native, tmp_path / "again", records=other, tell=told.append)
    assert told == ["applied tuning records for 0 of 1 tasks"]
    assert again.digest == first.digest
    assert again.records is None
    assert again.manifest.records == bundle.Tuned()
    assert again.manifest.command == "toolchain build net.onnx --no-records"


def test_a_record_that_does_not_fit_is_told(native, tmp_path):
    records = records_of(convolution(), native, tmp_path)
    broken = Records(records.workloads, (dataclasses.replace(records.trials[0], trace='{"template": "nosuch"}'),))
    told = []
    made = build(convolution(), native, tmp_path, records=broken, tell=told.append)
    assert "does not fit it any more" in told[0]
    assert told[1] == f"applied tuning records for 0 of {len(records.workloads)} tasks"
    assert made.records is None


def test_a_rebuild_without_records_drops_the_old_ones(native, tmp_path):
    build(convolution(), native, tmp_path, records=records_of(convolution(), native, tmp_path))
    assert build(convolution(), native, tmp_path).records is None


# --- the records that come with the toolchain -------------------------------------------------------------------


def like(native, mcpu, cores):
    return dataclasses.replace(native, target=dataclasses.replace(native.target, mcpu=mcpu), cores=cores)


def test_shipped_records_are_for_cpus_of_the_same_vectors_and_about_as_many_cores(native):
    found = compiler.shipped_records(like(native, "x86-64-v4", 2))
    assert found is not None
    assert len(found.trials) > 400
    assert compiler.shipped_records(like(native, "znver4", 4)) is not None
    assert len(compiler.shipped_records(like(native, "haswell", 2)).trials) > 100
    assert compiler.shipped_records(like(native, "x86-64-v4", 16)) is None
    assert compiler.shipped_records(like(native, "x86-64", 2)) is None
    assert compiler.shipped_records(board.load("rpi4").resolved()) is None


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("network", ["mobilenet_v2", "squeezenet_v1.1", "resnet-18"])
def test_shipped_records_are_for_layers_as_they_are_described_today(native, network, mcpu):
    kind = like(native, mcpu, 2)
    lowered = cpu.lowered(model.import_model(model.load(network)).module, kind)
    applied = compiler.Known(None, compiler.shipped_records(kind), emulated=False).applied(lowered, kind, ())
    layers = [task for task in tasks.extract(lowered, cpu.target(kind), cpu.templates(kind)) if task.layer]
    assert applied.shipped == len(layers) > 10
    assert set(applied.choices) == {task.layer for task in layers}


def test_the_users_records_win_over_shipped_ones(native, tmp_path):
    records, told = records_of(convolution(), native, tmp_path), []
    worst = [dataclasses.replace(one, samples_s=(1e-9,), target={"kind": "llvm"}) for one in records.trials]
    shipped = Records({}, tuple(worst))
    made = build(convolution(), native, tmp_path, records=records, shipped=shipped, tell=told.append)
    assert (made.manifest.records.tuned, made.manifest.records.shipped) == (len(records.workloads), 0)
    made = build(convolution(), native, tmp_path, shipped=shipped, tell=told.append)
    assert (made.manifest.records.tuned, made.manifest.records.shipped) == (0, len(records.workloads))
    assert made.manifest.command == "toolchain build net.onnx --records shipped"
    assert "the toolchain's own records" in told[-1]


# --- accelerators of int8 ---------------------------------------------------------------------------------------


VTA = board.load("vta-sim").resolved()
GIVEN = inputs.Source(seed=3)


def two_convolutions(groups=1):
    """A stem and a convolution behind it."""
    weights = {name: qdq_nets.weights(16, 16 // count, 1, 1) for name, count in (("w", 1), ("v", groups))}
    return nets.model(
        [nets.node("Conv", ["x", "w"], ["c"], "stem"), nets.node("Conv", ["c", "v"], ["y"], "second", group=groups)],
        [nets.value("x", (1, 16, 6, 6))],
        [nets.value("y", (1, 16, 6, 6))],
        weights,
    )


def suited(proto, folder, kind=VTA, without=(), given=GIVEN):
    """Return a model as it was and as it is for a board, and what was told."""
    source, told = model.load(nets.save(proto, folder)), []
    return source, compiler.suited(source, kind, given, without, told.append), told


def test_a_network_of_floats_is_quantized_for_such_a_board(tmp_path):
    source, made, told = suited(two_convolutions(), tmp_path)
    assert quantize.is_quantized(made)
    assert not quantize.is_quantized(source)
    assert (made.inputs, made.output_names, made.origin) == (source.inputs, source.output_names, source.origin)
    (line,) = told
    assert "8 samples" in line
    assert "toolchain quantize" in line


def test_it_is_calibrated_with_what_it_is_run_with(tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.full((1, 16, 6, 6), 1e4, np.float32))
    _, usual, _ = suited(two_convolutions(), tmp_path)
    _, same, _ = suited(two_convolutions(), tmp_path)
    _, wide, _ = suited(two_convolutions(), tmp_path, given=inputs.Source(npz=tmp_path / "wide.npz", seed=3))
    assert usual.sha256 == same.sha256 != wide.sha256


def test_a_quantized_network_stays_as_it_is(tmp_path):
    _, made, _ = suited(two_convolutions(), tmp_path)
    _, again, told = suited(made.proto, tmp_path)
    assert again.sha256 == made.sha256
    assert told == []


@pytest.mark.parametrize(("name", "without"), [("local", ()), ("rk3399", ()), ("vta-sim", ("vta",))])
def test_elsewhere_a_network_stays_on_floats(tmp_path, name, without):
    kind = board.load(name).resolved()
    source, made, told = suited(two_convolutions(), tmp_path, kind, without)
    assert made is source
    assert told == []
    assert not compiler.computes_int8(kind, without)


@pytest.mark.parametrize("proto", [nets.relu(), two_convolutions(groups=4)], ids=["none", "grouped"])
def test_a_network_without_a_convolution_to_quantize_is_the_cpus(tmp_path, proto):
    source, made, told = suited(proto, tmp_path)
    assert made is source
    assert told == ["net has no convolution that could be quantized: the CPU computes everything"]


def test_a_network_that_computes_with_integers_itself_is_the_cpus(tmp_path):
    bytes_ = {"w": np.ones((4, 4), np.uint8)}
    nodes = [
        nets.node("DynamicQuantizeLinear", ["x"], ["b", "s", "z"]),
        nets.node("MatMulInteger", ["b", "w"], ["i"]),
        nets.node("Cast", ["i"], ["y"], to=1),
    ]
    proto = nets.model(nodes, [nets.value("x", (4, 4))], [nets.value("y", (4, 4))], bytes_)
    source, made, told = suited(proto, tmp_path)
    assert made is source
    assert len(told) == 1
    assert "compute with integers" in told[0]
    assert told[0].endswith(": the CPU computes everything")


def test_whoever_computes_int8_says_so():
    assert compiler.computes_int8(VTA)
    assert compiler.computes_int8(VTA, ["winograd"])
    assert not compiler.computes_int8(VTA, vta.TEMPLATES)


def test_a_bundle_says_what_its_kernels_take_in_a_model_of_the_accelerator(tmp_path):
    proto = two_convolutions()
    proto.graph.node[1].output[0] = "d"
    proto.graph.node.append(nets.node("Add", ["d", "c"], ["y"]))
    _, made, _ = suited(proto, tmp_path)
    told = []
    modelled = build(made.proto, VTA, tmp_path, tell=told.append).manifest.modelled
    lowered = vta.lowered(model.import_model(made).module, VTA)
    (exact,) = filter(is_layer, (str(one.attrs.get(EXACT, "")) for _, one in tasks.called(lowered)))
    assert '"residual_shift":null' not in exact
    assert modelled.cycles == vta.machine_model(VTA).cycles(exact, None).cycles
    assert (modelled.kernels, modelled.macs, modelled.macs_per_cycle) == (1, 36 * 16 * 16, 256)
    assert (modelled.model, modelled.clock_mhz) == ("hls-pynq", 100.0)
    assert [line for line in told if line.startswith("the CPU computes convolution 1: 1x16x6x6, ")]


def test_what_the_cpu_computes_takes_no_modelled_cycles(tmp_path):
    assert build(two_convolutions(groups=4), VTA, tmp_path).manifest.modelled is None


@pytest.mark.parametrize("emulated", [False, True])
def test_records_of_one_accelerator_are_not_applied_to_another(tmp_path, emulated):
    """Even of the same CPU: one of them is simulated."""
    _, made, _ = suited(two_convolutions(), tmp_path)
    lowered = vta.lowered(model.import_model(made).module, VTA)
    lines = tunings.of_kernels(lowered, vta.target(VTA), vta.templates(VTA), emulated=True)
    known = compiler.Known(Records.collect(lines), None, emulated=emulated)
    pynq = dataclasses.replace(VTA, target=dataclasses.replace(VTA.target, device="vta-pynq-z1"))
    assert bool(known.applied(lowered, VTA, ()).tuned) == emulated
    assert known.applied(lowered, pynq, ()).tuned == 0
    assert known.applied(lowered, board.load("pynq-z1").resolved(), ()).tuned == 0
