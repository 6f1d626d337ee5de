"""The single-operator cases of the onnx wheel, through the project's own import and compiler.

    python -m tests.support.operator_cases [--constants] [--only REGEX] [--board opencl-local] [--json FILE]

prints how many of the cases are right, refused, wrong, fail otherwise, or end the process, and each that is not right.
A case is tried as it is, and with all inputs but the first as constants, as networks have most of them: it is right if
one of these is, and wrong if one of them is. Where neither can be compiled, all inputs are made constants.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

RIGHT, REFUSED, WRONG, FAILED, CRASHED = "right", "refused", "wrong", "failed", "crashed"
PROCESSOR, OPENCL = "local", "opencl-local"
Run = Callable[[Sequence[Any]], dict[str, np.ndarray]]
"""Runs a compiled model on its inputs; returns its outputs by name."""
_FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")
_AT_ONCE = 2  # processes
_WITHOUT_HALF = "it has no cl_khr_fp16"  # what the device says of kernels in half precision
_EPSILON = 1e-6  # of the greatest element: what is expected to be 0 is the noise of a sum there
# Two results that half precision rounded in different places are two of its steps apart: NumPy's, which the cases
# expect, are up to one off double precision's, as are ours. No case may ask for less than both.
_LEAST_RTOL = {"float16": 2 * float(np.finfo(np.float16).eps)}
_WITHOUT_DEFAULTS = 4  # the version of the format since which an initializer need not be an input too


@dataclass(frozen=True)
class Case:
    """A model with inputs and what it makes of them."""

    name: str
    proto: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float

    @property
    def operators(self) -> list[str]:
        return sorted({node.op_type for node in self.proto.graph.node if node.op_type != "Constant"})

    @property
    def dtype(self) -> str:
        """Element type of the first input; of the first output if there is none."""
        first = [*self.proto.graph.input, *self.proto.graph.output][0].type.tensor_type.elem_type
        return onnx.TensorProto.DataType.Name(first).lower() if first else ""

    def with_constants(self, first: int = 1) -> Case | None:
        """Return the case with the inputs from `first` on as constants; None if there are none or they are no tensors.

        A model needs an input: without any other, it has one that nothing reads.
        """
        if not first < len(self.inputs) == len(self.proto.graph.input):
            return None
        if not all(isinstance(array, (np.ndarray, np.generic)) for array in self.inputs[first:]):
            return None
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        proto.ir_version = max(proto.ir_version, _WITHOUT_DEFAULTS)
        constants = zip(proto.graph.input[first:], self.inputs[first:], strict=True)
        proto.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(array), value.name) for value, array in constants
        )
        del proto.graph.input[first:]
        inputs = self.inputs[:first]
        if not inputs:
            proto.graph.input.append(helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, [1]))
            inputs = [np.zeros(1, np.float32)]
        return Case(self.name, proto, inputs, self.outputs, self.rtol, self.atol)


@dataclass(frozen=True)
class Verdict:
    """What became of a case."""

    name: str
    operators: Sequence[str]
    dtype: str
    kind: str
    text: str = ""


@functools.cache
def cases() -> dict[str, Case]:
    """Return all cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in [*_nodes(), *_stored()]}


def _nodes() -> Iterator[Case]:
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        inputs, outputs = (
            [numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item for item in values]
            for values in case.data_sets[0]
        )
        yield Case(case.name, case.model, inputs, outputs, case.rtol, case.atol)


def _stored() -> Iterator[Case]:
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in _FOLDERS:
        for folder in sorted((data / kind).iterdir()):
            proto = onnx.load(folder / "model.onnx")
            inputs = _arrays(folder, "input", proto.graph.input)
            outputs = _arrays(folder, "output", proto.graph.output)
            yield Case(f"{kind}__{folder.name}", proto, inputs, outputs, 1e-3, 1e-7)


def _arrays(folder: Path, prefix: str, values: Sequence[Any]) -> list[Any]:
    return [
        _array(folder / "test_data_set_0" / f"{prefix}_{number}.pb", value)
        for number, value in enumerate(values)
        if (folder / "test_data_set_0" / f"{prefix}_{number}.pb").is_file()
    ]


def _array(path: Path, value: Any) -> Any:
    if not value.type.HasField("tensor_type"):
        return path.read_bytes()
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def computed(case: Case, kind: str = PROCESSOR) -> list[np.ndarray]:
    """Import, compile and run a case on this machine's processor, or on its OpenCL device."""
    from toolchain.errors import InputError

    imported, run = _compiled(case.name, case.proto.SerializeToString(deterministic=True), kind)
    specs = zip(imported.source.inputs, case.inputs, strict=True)
    if any(spec.shape != np.shape(array) for spec, array in specs):
        raise InputError("a size of 0 is taken for an open one")
    return list(run(case.inputs).values())


@functools.lru_cache(maxsize=2)  # many tests run a model on one input after the other
def _compiled(name: str, model: bytes, kind: str) -> tuple[Any, Run]:
    from toolchain.models import importer, source

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model)
        imported = importer.import_model(source.load(str(path)))
    return imported, compile_imported(imported, kind)


def compile_imported(imported: Any, kind: str = PROCESSOR) -> Run:
    """Compile an imported model for this machine's processor or its OpenCL device; return what runs it."""
    import tvm

    from toolchain import board, tensors
    from toolchain.backends import backend_of

    backend = backend_of(board.load(kind).resolved())
    finished = backend.apply_choices(backend.lower(imported.module), {})
    machine, device = _on_processor(finished, backend) if kind == PROCESSOR else _on_opencl(finished, backend)

    def run(inputs: Sequence[Any]) -> dict[str, np.ndarray]:
        result = machine["main"](*(tvm.runtime.tensor(np.array(array, order="C"), device) for array in inputs))
        results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        outputs = {spec.name: tensor.numpy() for spec, tensor in zip(imported.outputs, results, strict=True)}
        return tensors.cut(outputs, imported.outputs)

    return run


def _on_processor(finished: Any, backend: Any) -> tuple[Any, Any]:
    import tvm
    from tvm import relax

    from toolchain.backends.cpu.lowering import PIPELINE

    return relax.VirtualMachine(
        tvm.compile(finished, target=backend.target, tir_pipeline=PIPELINE), tvm.cpu()
    ), tvm.cpu()


def _on_opencl(finished: Any, backend: Any) -> tuple[Any, Any]:
    import tvm
    from tvm import relax

    device = _opencl(backend)
    built = tvm.compile(finished, target=backend.target)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "net.so")
        built.export_library(path)
        return relax.VirtualMachine(tvm.runtime.load_module(path), device), device


@functools.cache
def _opencl(backend: Any) -> Any:
    """Return this machine's OpenCL device, whose kernels are not kept."""
    import tvm

    os.environ["EDGE_OPENCL_CACHE"] = ""
    if not tvm.runtime.device("opencl", 0).exist:
        ctypes.CDLL(str(backend.python_runtime(lambda _line: None)))
    return tvm.runtime.device("opencl", 0)


def judged(case: Case, *, constants: bool = False, kind: str = PROCESSOR) -> Verdict:
    """Run a case in its forms and compare; `constants` wants just the one with constants."""
    with_some = case.with_constants()
    forms = [with_some or case] if constants else [case, *([with_some] if with_some else [])]
    verdicts = [_judged(form, kind) for form in forms]
    everything = case.with_constants(0)
    if everything and not constants and all(verdict == REFUSED for verdict, _ in verdicts):
        verdicts.append(_judged(everything, kind))
    # The last that was refused was refused for what the operator is, and not for what is computed too late.
    verdict, text = min(reversed(verdicts), key=lambda verdict_text: _GRAVITY.index(verdict_text[0]))
    return Verdict(case.name, case.operators, case.dtype, verdict, text[:400])


_GRAVITY = (CRASHED, FAILED, WRONG, RIGHT, REFUSED)


def _judged(case: Case, kind: str) -> tuple[str, str]:
    from toolchain.errors import InputError

    try:
        outputs = computed(case, kind)
    except InputError as fault:
        return REFUSED, f"{fault.message}: {fault.details or ''}"
    except Exception as fault:  # noqa: BLE001 - whatever it is, it is counted
        if _WITHOUT_HALF in str(fault):
            return REFUSED, str(fault).strip()
        return FAILED, f"{type(fault).__name__}: {str(fault).strip()[-300:]}"
    faults = [_difference(*pair, case) for pair in zip(outputs, case.outputs, strict=False)]
    if len(outputs) != len(case.outputs):
        faults.append(f"{len(outputs)} outputs, not {len(case.outputs)}")
    return (WRONG, "; ".join(filter(None, faults))) if any(faults) else (RIGHT, "")


def _difference(output: np.ndarray, expected: Any, case: Case) -> str:
    if not isinstance(expected, (np.ndarray, np.generic)):
        return "the expected output is no tensor"
    if (output.shape, output.dtype) != (expected.shape, expected.dtype):
        return f"{output.dtype}{output.shape}, not {expected.dtype}{expected.shape}"
    ours, theirs = output.astype(_wide(output)), expected.astype(_wide(expected))
    noise = _EPSILON * np.abs(theirs[np.isfinite(theirs)]).max(initial=0) if output.dtype.kind == "f" else 0
    try:
        np.testing.assert_allclose(ours, theirs, rtol=tolerance(case.rtol, output.dtype), atol=max(case.atol, noise))
    except AssertionError as fault:
        return " ".join(str(fault).split())
    return ""


def tolerance(limit: float, dtype: np.dtype[Any]) -> float:
    """Return the relative difference that a case allows of outputs of a type: as it says, but no less than rounding."""
    return max(limit, _LEAST_RTOL.get(dtype.name, 0.0))


def _wide(array: np.ndarray) -> Any:
    return np.float64 if array.dtype.kind in "fV" else array.dtype


def run(names: Sequence[str], *, constants: bool = False, kind: str = PROCESSOR) -> list[Verdict]:
    """Judge cases in processes of their own, so that one that crashes takes no other with it."""
    chunks = [list(names[start::_AT_ONCE]) for start in range(_AT_ONCE)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(lambda chunk: _chunk(chunk, constants=constants, kind=kind), chunks))
    return sorted(
        (verdict for verdicts in results for verdict in verdicts), key=lambda verdict: names.index(verdict.name)
    )


def _chunk(names: list[str], *, constants: bool, kind: str) -> list[Verdict]:
    verdicts: list[Verdict] = []
    while names:
        command = [sys.executable, "-m", __spec__.name, "--here", "--board", kind]
        command += ["--constants"] if constants else []
        process = subprocess.run(command, input="\n".join(names), capture_output=True, text=True, check=False)
        lines = [line for line in process.stdout.splitlines() if line.startswith('{"name"')]
        verdicts += [Verdict(**json.loads(line)) for line in lines]
        names = names[len(lines) :]
        if names:
            text = f"exit code {process.returncode}: {process.stderr.strip()[-300:]}"
            verdicts.append(Verdict(names.pop(0), [], "", CRASHED, text))
    return verdicts


def _here(names: Sequence[str], *, constants: bool, kind: str) -> None:
    for name in names:
        sys.stdout.write(json.dumps(judged(cases()[name], constants=constants, kind=kind).__dict__) + "\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--constants", action="store_true", help="all inputs but the first are constants")
    parser.add_argument("--only", default="", help="a regular expression for the names")
    parser.add_argument("--board", choices=(PROCESSOR, OPENCL), default=PROCESSOR)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help="run the names of standard input in this process")
    options = parser.parse_args()
    if options.here:
        _here(sys.stdin.read().split(), constants=options.constants, kind=options.board)
        return
    names = [name for name in cases() if re.search(options.only, name)]
    completed = run(names, constants=options.constants, kind=options.board)
    if options.json:
        options.json.write_text(json.dumps([verdict.__dict__ for verdict in completed], indent=1))
    for verdict in completed:
        if verdict.kind != RIGHT:
            sys.stdout.write(f"{verdict.kind:8} {verdict.name} [{' '.join(verdict.operators)}] {verdict.text}\n")
    sys.stdout.write(f"{dict(collections.Counter(verdict.kind for verdict in completed))}\n")


if __name__ == "__main__":
    main()
