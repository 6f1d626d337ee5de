"""The compiler: a bundle whose parts fit together, the same bytes every time, and faults that name their cause."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.support import nets, nightly, one_node, qdq_nets, tunings
from tests.support.one_node import One
from toolchain import board, bundle, files, tensors
from toolchain.backends.base import EXACT
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.vta.backend import Vta
from toolchain.backends.vta.codegen.layers import is_layer
from toolchain.board import Target
from toolchain.bundle import memory
from toolchain.compile import compiler, prepare
from toolchain.compile.applicable_records import RecordSources
from toolchain.compile.request import BuildRequest
from toolchain.errors import BuildError, InputError, VerificationError
from toolchain.models import importer, inputs
from toolchain.models import source as model
from toolchain.models.request import Model
from toolchain.records import RecordFile, Records, default_path, tasks

COMMAND = "toolchain build net.onnx --board local --seed 0"
BUILD = """
from pathlib import Path
import sys
from toolchain import board
from toolchain.compile import compiler
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, source
from toolchain.models.request import Model
kind = board.load("local").resolved()
model = importer.import_model(source.load(sys.argv[2]))
request = BuildRequest(Model(sys.argv[2]), kind)
made = compiler.build(model, request, Path(sys.argv[1]))
print(made.digest)
"""


def build(proto, native, folder, records=None, shipped=None, **options):
    path = folder / "net.onnx"
    onnx.save(proto, path)
    request = BuildRequest(Model(str(path), {}, inputs.Source()), native, **options)
    imported = importer.import_model(model.load(str(path)))
    return compiler.build(imported, request, folder / "bundle", records=RecordSources(records, shipped))


@pytest.fixture(params=["mlp", nightly.left("squeezenet_v1.1"), "boxes"])
def any_model(request, tmp_path):
    """A network of the zoo, or one with a kernel that is not made of loops."""
    if request.param != "boxes":
        return request.param
    boxes, scores = np.ones((1, 6, 4), np.float32), np.ones((1, 2, 6), np.float32)
    constants = [np.array([3], np.int64), np.array([0.5], np.float32)]
    proto, _ = one_node.model([One("NonMaxSuppression", [boxes, scores, *constants], given=2)], 17)
    onnx.save(proto, tmp_path / "boxes.onnx")
    return str(tmp_path / "boxes.onnx")


@pytest.mark.long
def test_two_processes_in_two_folders_build_the_same_bundle(any_model, tmp_path):
    digests = [
        subprocess.run(
            [sys.executable, "-c", BUILD, str(folder), any_model],
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
    built = build(proto, native, tmp_path, without=Cpu.template_names)  # which would pack them
    params = tensors.load(built.folder / bundle.PARAMS)
    assert [params[name].tolist() for name in built.manifest.params_order] == [marks.tolist()]
    for name in (bundle.LIBRARY, bundle.GRAPH):
        assert marks.tobytes() not in (built.folder / name).read_bytes()


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


def test_the_graph_of_a_bundle_is_that_of_its_board(tiny, native):
    assert compiler.load_graph(tiny.folder, native).get_global_vars()
    with pytest.raises(VerificationError, match="was built for board local, not for board rk3588"):
        compiler.load_graph(tiny.folder, board.load("rk3588").resolved())
    for half_sums, option in ((False, "--float16"), (True, "--half-sums")):
        with pytest.raises(InputError, match=f"was not built with {option}"):
            compiler.load_graph(tiny.folder, native.with_precision(float16=True, half_sums=half_sums))


def test_a_folder_with_something_else_is_left_alone(native, tmp_path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="something other"):
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

    monkeypatch.setattr("toolchain.native.cross.HostCross.link", refuse)
    with pytest.raises(BuildError, match="out of order"):
        build(nets.relu((4, 5)), native, tmp_path)
    assert bundle.load(tmp_path / "bundle").digest == first.digest
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


@pytest.mark.parametrize(("mcpu", "advice"), [("z80", "such as generic"), ("znver44", "did you mean znver4?")])
def test_an_unknown_cpu_is_refused_with_advice(native, mcpu, advice):
    board = dataclasses.replace(native, target=Target(mcpu=mcpu))
    with pytest.raises(InputError, match=f"no CPU named '{mcpu}'") as caught:
        _ = Cpu(board).target
    assert advice in caught.value.hint


def test_a_missing_compiler_is_a_build_error(native, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    board = dataclasses.replace(native, compiler="clang++")
    with pytest.raises(BuildError, match="not installed"):
        build(nets.relu(), board, tmp_path)


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
    lowered = Cpu(native).lower(importer.import_model(model.load(str(path))).module)
    return Records.collect(tunings.of_kernels(lowered, Cpu(native)))


def test_records_are_applied_and_named_in_the_manifest(native, tmp_path):
    records, messages = records_of(convolution(), native, tmp_path), []
    built = build(convolution(), native, tmp_path, records=records, progress=messages.append)
    count = len(records.workloads)  # the convolution, and perhaps changes of layout around it
    assert messages == [f"tuning records for {count} of {count} kernels: {count} from {default_path(native.name)}"]
    assert built.manifest.records == bundle.Tuned(files.sha256_file(built.records), tasks=count, tuned=count)
    assert built.manifest.command == f"{COMMAND} --records records.jsonl"
    assert built.manifest.target["num-cores"] == native.cores


def test_the_records_in_a_bundle_make_it_again(native, tmp_path):
    records = records_of(convolution(), native, tmp_path)
    first = build(convolution(), native, tmp_path, records=records)
    (tmp_path / "again").mkdir()
    again = build(convolution(), native, tmp_path / "again", records=RecordFile(first.records).read())
    assert again.digest == first.digest


def test_records_that_fit_nothing_leave_the_bundle_untuned(native, tmp_path):
    first = build(nets.relu((2, 3)), native, tmp_path)
    other = records_of(convolution(), native, tmp_path)
    messages = []
    (tmp_path / "again").mkdir()
    again = build(nets.relu((2, 3)), native, tmp_path / "again", records=other, progress=messages.append)
    assert messages == [f"tuning records for 0 of 1 kernels: 0 from {default_path(native.name)}"]
    assert again.digest == first.digest
    assert again.records is None
    assert again.manifest.records == bundle.Tuned()
    assert again.manifest.command == f"{COMMAND} --no-records"


def test_a_record_that_does_not_fit_is_told(native, tmp_path):
    records = records_of(convolution(), native, tmp_path)
    broken = Records.collect([dataclasses.replace(records.trials[0], trace='{"template": "nosuch"}')])
    messages = []
    built = build(convolution(), native, tmp_path, records=broken, progress=messages.append)
    assert "no longer fits the kernel" in messages[0]
    assert messages[1].startswith(f"tuning records for 0 of {len(records.workloads)} kernels: 0 from ")
    assert built.records is None


def test_a_rebuild_without_records_drops_the_old_ones(native, tmp_path):
    build(convolution(), native, tmp_path, records=records_of(convolution(), native, tmp_path))
    assert build(convolution(), native, tmp_path).records is None


def test_the_users_records_win_over_shipped_ones(native, tmp_path):
    records, messages = records_of(convolution(), native, tmp_path), []
    worst = [dataclasses.replace(record, samples_s=(1e-8,), target={"kind": "llvm"}) for record in records.trials]
    shipped = Records.collect(worst)
    built = build(convolution(), native, tmp_path, records=records, shipped=shipped, progress=messages.append)
    assert (built.manifest.records.tuned, built.manifest.records.shipped) == (len(records.workloads), 0)
    built = build(convolution(), native, tmp_path, shipped=shipped, progress=messages.append)
    assert (built.manifest.records.tuned, built.manifest.records.shipped) == (0, len(records.workloads))
    assert built.manifest.command == f"{COMMAND} --records shipped"
    assert f"{len(records.workloads)} from the toolchain" in messages[-1]


# --- accelerators of int8 ---------------------------------------------------------------------------------------


VTA = board.load("vta-sim").resolved()


def quantized(proto, folder):
    path = nets.save(proto, folder)
    return prepare.quantize_if_needed(
        model.load(path), BuildRequest(Model(path, {}, inputs.Source(seed=3)), VTA)
    ).source


def test_a_bundle_says_what_its_kernels_take_in_a_model_of_the_accelerator(tmp_path):
    proto = qdq_nets.two_convolutions()
    proto.graph.node[1].output[0] = "d"
    proto.graph.node.append(nets.node("Add", ["d", "c"], ["y"]))
    source = quantized(proto, tmp_path)
    messages = []
    modelled = build(source.proto, VTA, tmp_path, progress=messages.append).manifest.modelled
    lowered = Vta(VTA).lower(importer.import_model(source).module)
    exact = [*filter(is_layer, (str(function.attrs.get(EXACT, "")) for _, function in tasks.called(lowered)))]
    assert ['"residual_shift":null' in layer for layer in exact] == [True, False]
    assert modelled.cycles == sum(Vta(VTA).machine_model.cycles(layer, None).cycles for layer in exact)
    assert (modelled.kernels, modelled.macs, modelled.macs_per_cycle) == (2, 2 * 36 * 16 * 16, 256)
    assert (modelled.model, modelled.clock_mhz) == ("hls-pynq", 100.0)
    assert not [line for line in messages if "the CPU computes" in line]


def test_what_the_cpu_computes_takes_no_modelled_cycles_and_is_named(tmp_path):
    messages = []
    assert build(qdq_nets.two_convolutions(), VTA, tmp_path, progress=messages.append).manifest.modelled is None
    assert [line for line in messages if line.startswith("the CPU computes convolution 1: 1x16x6x6, ")]


def test_the_manifest_counts_kernels_that_leave_out_zeros(native, tmp_path):
    stream = np.random.default_rng(0)
    weights = stream.standard_normal((256, 256), np.float32)
    nodes = [nets.node("MatMul", ["x", "w"], ["y"])]
    ends = [nets.value("x", (16, 256))], [nets.value("y", (16, 256))]
    dense = build(nets.model(nodes, *ends, {"w": weights}), native, tmp_path)
    assert dense.manifest.sparse is None
    weights.reshape(256, 16, 16)[stream.random((256, 16)) < 0.9] = 0  # blocks of 16 outputs of an input
    sparse = build(nets.model(nodes, *ends, {"w": weights}), native, tmp_path).manifest.sparse
    assert sparse.kernels == 1
    assert sparse.zeros == pytest.approx(0.9, abs=0.02)
    assert all(share == pytest.approx(0.9, abs=0.02) for share in sparse.blocks.values())


def test_a_limit_of_memory(native, tmp_path):
    """Weights and activations of one convolution: 64 channels of 32x32 pixels in and out."""
    proto = one_convolution(64, 32)
    full = build(proto, native, tmp_path)
    assert full.manifest.activations >= 64 * 32 * 32 * 4
    planned = memory.planned(full.manifest)
    assert planned.weights == (full.folder / bundle.PARAMS).stat().st_size
    assert build(proto, native, tmp_path, max_memory=planned.peak).digest == full.digest
    assert planned.weights > 2 * 64 * 64 * 9 * 4, "Winograd's weights are larger"
    lines: list[str] = []
    smaller = build(proto, native, tmp_path, max_memory=planned.peak - 1, progress=lines.append)
    smallest = memory.planned(smaller.manifest)
    assert smallest.weights < 1.1 * 64 * 64 * 9 * 4
    assert any("building again without larger_weights" in line for line in lines)
    assert smaller.manifest.command.endswith("--without larger_weights --without winograd")
    with pytest.raises(BuildError, match=r"needs [\d.]+ MiB of memory, and --max-ram allows") as caught:
        build(proto, native, tmp_path, max_memory=smallest.peak - 1)
    assert "largest weights as packed: " in caught.value.details
    assert "is the smallest limit that works" in caught.value.hint
    assert bundle.load(smaller.folder).digest == smaller.digest


def test_memory_of_another_device_is_not_planned(tmp_path):
    with pytest.raises(InputError, match="memory is not planned for board rk3399"):
        build(one_convolution(8, 8), board.load("rk3399").resolved(), tmp_path, max_memory=1 << 30)


def one_convolution(channels, side):
    weights = np.random.default_rng(0).standard_normal((channels, channels, 3, 3), np.float32)
    nodes = [nets.node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    shape = (1, channels, side, side)
    return nets.model(nodes, [nets.value("x", shape)], [nets.value("y", shape)], {"w": weights})
