"""Model files on their whole way: built for this machine, run by the real runner, compared with a reference.

    python -m tests.support.judged

reads one JSON object a line from standard input, `{"model": PATH, "inputs": PATH}`, where the inputs are a safetensors
file or empty, and writes a verdict a line. `benchmarks/suites.py` starts it, so that a model that ends the process or
takes too long ends nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from toolchain import board, rankings, tensors
from toolchain.board import Board
from toolchain.compile import compiler
from toolchain.compile.request import BuildRequest
from toolchain.device import runner
from toolchain.errors import InputError, ToolchainError
from toolchain.models import importer, inputs, reference, source
from toolchain.models.importer import ImportedModel
from toolchain.models.request import Model
from toolchain.models.source import SourceModel, as_declared
from toolchain.native import programs
from toolchain.native.programs import Program
from toolchain.pipeline.expected import Expected, ReferenceModel
from toolchain.shell import LocalShell
from toolchain.tensors import Difference, Tensors, TensorSpec

Array = NDArray[Any]

RIGHT, REFUSED, UNREFERENCED = "right", "refused", "without a reference"
WRONG, FAILED = "wrong", "build error"
KINDS = (RIGHT, REFUSED, UNREFERENCED, WRONG, FAILED)
_THREADS = 2
_FEW = 16
"""The most numbers that axes, sizes, pads and the like are."""
_OPEN = 3
"""The size of a dimension that a file leaves open, and for which nobody gives an input."""
_MOST_TEXT = 600


@dataclass(frozen=True)
class Verdict:
    """What became of a model, one of `KINDS`, and why it is not right."""

    kind: str
    reason: str = ""


def judge(path: Path, arrays: Mapping[str, Array], native: Board, program: Program) -> Verdict:
    """Build a model, run it and compare, with inputs that are given or else drawn.

    Axes, sizes and other parameters that come with a run must be constants for a compiler. Where a suite gives them,
    the model is tried again with them as constants, as `--fix` makes them.
    """
    verdict = _judge(path, arrays, native, program)
    if verdict.kind != REFUSED or not (parameters := _parameters(path, arrays)):
        return verdict
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / path.name
        onnx.save(_with_constants(onnx.load(path), parameters), fixed)
        again = _judge(fixed, {name: arrays[name] for name in arrays if name not in parameters}, native, program)
    return verdict if again.kind == REFUSED else again


def _parameters(path: Path, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs of a few numbers, all but the first input of the model."""
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.input]
    rest = [name for name in names if name in arrays][1:]
    return {name: arrays[name] for name in rest if arrays[name].ndim <= 1 and arrays[name].size <= _FEW}


def _with_constants(proto: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    graph_inputs = [value for value in proto.graph.input if value.name not in values]
    del proto.graph.input[:]
    proto.graph.input.extend(graph_inputs)
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return proto


def _judge(path: Path, arrays: Mapping[str, Array], native: Board, program: Program) -> Verdict:
    try:
        read = source.load(str(path), _shapes(path, arrays))
        feeds = _fed(arrays, read.inputs)
        imported = importer.import_model(read)
    except InputError as fault:
        return Verdict(REFUSED, _text(fault))
    except Exception as fault:  # noqa: BLE001 - whatever it is, it is counted
        return Verdict(FAILED, f"import: {type(fault).__name__}: {fault}"[:_MOST_TEXT])
    try:
        outputs = computed(imported, feeds, native, program)
    except InputError as fault:
        return Verdict(REFUSED, _text(fault))
    except Exception as fault:  # noqa: BLE001 - as above
        return Verdict(FAILED, f"{type(fault).__name__}: {_text(fault)}")
    try:
        return _by_references(outputs, read, feeds)
    except _NoReferenceError as fault:
        return Verdict(UNREFERENCED, str(fault))


def _by_references(outputs: Tensors, read: SourceModel, feeds: Tensors) -> Verdict:
    """Compare with ONNX Runtime; the standard's evaluator decides where that lacks a kernel, or does something else."""
    try:
        model = ReferenceModel(reference.with_plain_lstm(read), unoptimized=False, float16=False)
        verdict = _compared(outputs, model.run(feeds))
    except InputError as fault:
        try:
            return _compared(outputs, _by_standard(read, feeds))
        except _NoReferenceError as other:
            text = f"ONNX Runtime: {fault.details[-_MOST_TEXT // 2 :]}; evaluator: {other}"
            raise _NoReferenceError(text[:_MOST_TEXT]) from fault
    if verdict.kind == RIGHT:
        return verdict
    try:
        standard = _compared(outputs, _by_standard(read, feeds))
    except _NoReferenceError:
        return verdict
    if standard.kind == RIGHT:
        return Verdict(RIGHT, f"as the standard's evaluator; ONNX Runtime differs: {verdict.reason}")
    return verdict


_RANDOM = inputs.Source()


def _fed(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> Tensors:
    """Return the inputs that a suite gives, or others where those are none for the model."""
    shared = {spec.name: arrays[spec.name] for spec in specs if spec.name in arrays}
    return inputs.random(specs, 0) if tensors.check_signature(shared, specs) else shared


class _NoReferenceError(Exception):
    """Nothing here computes a model but the toolchain."""


def computed(imported: ImportedModel, feeds: Tensors, native: Board, program: Program) -> dict[str, Array]:
    """Build an imported model for this machine and run it with the runner; return its outputs by name."""
    with tempfile.TemporaryDirectory() as folder, LocalShell() as shell:
        request = BuildRequest(Model(imported.source.origin, {}, _RANDOM), native, tuned=False)
        release = compiler.build(imported, request, Path(folder) / "bundle")
        tensors.save(Path(folder) / runner.INPUTS, feeds)
        folders = {"runners": str(program.path.parent), "inputs": folder}
        run = runner.call(
            shell,
            folder,
            folders,
            release=str(release.folder),
            threads=_THREADS,
            plan=runner.SMOKE,
            outputs=imported.outputs,
        )
    return tensors.cut(run.outputs, imported.outputs)


def difference(outputs: Tensors, read: SourceModel, feeds: Tensors) -> Difference:
    """Compare outputs with those of ONNX Runtime as a deploy does."""
    expected = ReferenceModel(read, unoptimized=False, float16=False).run(feeds)
    return rankings.compare(outputs, expected.outputs, expected.rankings, expected.tolerance)


def _shapes(path: Path, arrays: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return shapes for inputs that a file leaves open: those of the given ones, or else of a few elements."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in weights and _is_open(value)]
    return {value.name: arrays[value.name].shape if value.name in arrays else _closed(value) for value in values}


def _closed(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value if dim.dim_value > 0 else _OPEN for dim in value.type.tensor_type.shape.dim)


def _is_open(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return not tensor.HasField("shape") or any(dim.dim_value <= 0 for dim in tensor.shape.dim)


def _by_standard(read: SourceModel, feeds: Tensors) -> Expected:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values = ReferenceEvaluator(as_declared(read)).run(None, dict(feeds))
    except Exception as fault:
        raise _NoReferenceError(f"{type(fault).__name__}: {fault}") from fault
    outputs = {name: np.asarray(value) for name, value in zip(read.output_names, values, strict=True)}
    return Expected(outputs, reference.tolerance(read))


def _compared(outputs: Tensors, expected: Expected) -> Verdict:
    for name, theirs in expected.outputs.items():
        got = outputs[name]
        if (got.shape, got.dtype) != (theirs.shape, theirs.dtype):
            return Verdict(WRONG, f"{name}: {got.dtype}{got.shape}, not {theirs.dtype}{theirs.shape}")
    apart = rankings.compare(outputs, expected.outputs, expected.rankings, expected.tolerance)
    # A deploy does not accept outputs of nothing but NaN, which show nothing; here they may be what is tried.
    same = all(
        np.array_equal(outputs[name], theirs, equal_nan=theirs.dtype.kind == "f")
        for name, theirs in expected.outputs.items()
    )
    if apart.ok or same:
        return Verdict(RIGHT)
    return Verdict(WRONG, f"largest relative difference {apart.max_rel:.2g}, limit {apart.tolerance:.0e}")


def _text(fault: Exception) -> str:
    if isinstance(fault, ToolchainError):
        return " | ".join(filter(None, [fault.message, " ".join(fault.details.split())]))[:_MOST_TEXT]
    return str(fault)[:_MOST_TEXT]


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    logging.disable()
    native = board.load("local").resolved()
    program = programs.build(programs.RUNNER, native.triple, native.machine)
    for line in sys.stdin:
        job = json.loads(line)
        arrays = tensors.load(Path(job["inputs"])) if job["inputs"] else {}
        verdict = judge(Path(job["model"]), arrays, native, program)
        print(json.dumps(asdict(verdict)), file=answers, flush=True)


if __name__ == "__main__":
    main()
