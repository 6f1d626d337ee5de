"""Small real bundles: one is compiled, others are derived from it by new weights; and a check of releases on disk."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from toolchain import board, files, tensors
from toolchain import bundle as bundles
from toolchain.backends import backend_of
from toolchain.board import Board
from toolchain.bundle import Bundle, inventories
from toolchain.compile import compiler
from toolchain.compile.request import BuildRequest
from toolchain.device.shipment import SIGNED
from toolchain.models import importer, inputs, reference
from toolchain.models import source as model
from toolchain.models.request import Model
from toolchain.pipeline.expected import ReferenceModel


def dense(rows: int, columns: int, seed: int = 0, *, most: float | None = None) -> onnx.ModelProto:
    """Return `y = relu(x w + b)` with seeded weights; with `most`, no element of x counts for more than that."""
    stream = np.random.default_rng(seed)
    weights = {"w": stream.standard_normal((rows, columns)), "b": stream.standard_normal(columns)}
    clip = [helper.make_node("Clip", ["x", "", "most"], ["clipped"])] if most else []
    weights |= {"most": np.array(most)} if most else {}
    nodes = [
        *clip,
        helper.make_node("MatMul", ["clipped" if most else "x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    tensor = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", tensor, [1, rows])],
        [helper.make_tensor_value_info("y", tensor, [1, columns])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def build(
    folder: Path, rows: int, columns: int, kind: Board | None = None, *, samples: int = 0, most: float | None = None
) -> Bundle:
    """Compile a dense layer into `folder`/bundle: for this machine, or on it for another board.

    Args:
        folder: Where to.
        rows: Size of its input.
        columns: Size of its output.
        kind: The board.
        samples: For how many random inputs its reference has outputs, too.
        most: What the library, but not the reference, takes for every greater element of its input.
    """
    path = folder / "dense.onnx"
    onnx.save(dense(rows, columns), path)
    source = model.load(str(path))
    given = {"x": np.random.default_rng(1).standard_normal((1, rows)).astype(np.float32)}
    reference_model = ReferenceModel(source, unoptimized=False, float16=False)
    random_samples = reference_model.run_random(0, samples, lambda _line: None) if samples else None
    answers = bundles.Reference(reference.NAME, given, reference.run(source, given), random=random_samples)
    if most:
        onnx.save(dense(rows, columns, most=most), path)
        source = model.load(str(path))
    kind = kind or board.load("local").resolved()
    plain = backend_of(kind).template_names  # none of them, so that the weights stay as they are
    request = BuildRequest(Model(str(path), {}, inputs.Source()), kind, toolchain="host", without=plain)
    return compiler.build(importer.import_model(source), request, folder / "bundle", reference=answers)


def of_model(proto: onnx.ModelProto, folder: Path, given: Mapping[str, NDArray[Any]]) -> Bundle:
    """Compile a model for this machine into `folder`/bundle, with its reference for some inputs."""
    path = folder / "model.onnx"
    onnx.save(proto, path)
    source = model.load(str(path))
    result = ReferenceModel(source, unoptimized=False, float16=False).run(given)
    answers = bundles.Reference(reference.NAME, given, result.outputs, result.tolerance, rankings=result.rankings)
    request = BuildRequest(Model(str(path), {}, inputs.Source()), board.load("local").resolved(), toolchain="host")
    return compiler.build(importer.import_model(source), request, folder / "bundle", reference=answers)


def variant(base: Bundle, folder: Path, contents: Mapping[str, bytes], **changes: Any) -> Bundle:
    """Copy a bundle with other contents of some files and other values of some fields of its manifest."""
    shutil.copytree(base.folder, folder)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return described(base, folder, **changes)


def renamed(base: Bundle, name: str) -> Bundle:
    """Return a bundle under any name, also under one that no manifest has when it is read."""
    return dataclasses.replace(base, manifest=dataclasses.replace(base.manifest, name=name))


def described(base: Bundle, folder: Path, **changes: Any) -> Bundle:
    """Write the manifest of a bundle whose files were changed in its folder, and open it."""
    measured = {"files": bundles.records(folder), "reference": bundles.reference_record(folder)}
    manifest = dataclasses.replace(base.manifest, **measured, **changes)
    (folder / bundles.MANIFEST).write_bytes(manifest.encoded())
    inventories.save(folder, manifest)
    return bundles.load(folder)


def reweighted(base: Bundle, folder: Path, seed: int) -> Bundle:
    """Copy a bundle of `build` with other weights, and with the outputs that these give as its reference."""
    stream = np.random.default_rng(seed)
    params = {
        name: stream.standard_normal(value.shape).astype(np.float32)
        for name, value in tensors.load(base.folder / bundles.PARAMS).items()
    }
    input_array = tensors.load(base.folder / bundles.REFERENCE)["input.x"]
    shutil.copytree(base.folder, folder)
    tensors.save(folder / bundles.PARAMS, params)
    bundles.Reference("numpy", {"x": input_array}, {"y": _dense_outputs(input_array, params)}).save(folder)
    return described(base, folder)


def _dense_outputs(input_array: NDArray[Any], params: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    product, offset = (next(value for value in params.values() if value.ndim == rank) for rank in (2, 1))
    return np.maximum(input_array @ product + offset, 0)


def whole_release(root: Path) -> str | None:
    """Return the digest of the current release after checking every byte of it; None where nothing is current."""
    current = root / "current"
    if not current.is_symlink():
        return None
    folder = current.resolve(strict=True)
    assert folder.parent == (root / "releases").resolve()
    document = (folder / "oci.json").read_bytes()
    assert files.sha256_bytes(document) == folder.name
    manifest = (folder / bundles.MANIFEST).read_bytes()
    assert json.loads(document)["layers"][0]["digest"] == f"sha256:{files.sha256_bytes(manifest)}"
    recorded = {name: record["sha256"] for name, record in json.loads(manifest)["files"].items()}
    digests = {path.name: files.sha256_file(path) for path in folder.iterdir()}
    assert {name: digests.get(name) for name in recorded} == recorded
    assert set(digests) - {SIGNED} == {*recorded, "oci.json", bundles.MANIFEST}
    return folder.name
