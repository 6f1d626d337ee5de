"""The compiler: a bundle whose parts fit together, the same bytes every time, and faults that name their cause."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests import nets
from toolchain import bundle, compiler, cross, model, tensors
from toolchain.backends import cpu
from toolchain.board import Target
from toolchain.errors import BuildError, InputError

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
    made = build(proto, native, tmp_path)
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
    import dataclasses

    board = dataclasses.replace(native, target=Target(mcpu="z80"))
    with pytest.raises(InputError, match="z80") as caught:
        cpu.target(board)
    assert "znver4" in caught.value.details


def test_a_missing_compiler_is_a_build_error(native, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="not installed") as caught:
        build(nets.relu(), native, tmp_path)
    assert "doctor" in caught.value.hint
