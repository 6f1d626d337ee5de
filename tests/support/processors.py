"""Small networks on every kind of processor that kernels are written for, here or under emulation."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import tvm
from safetensors.numpy import load_file
from tvm import relax

from tests.support import nets, opencl
from tests.support.parts import require, require_processor
from toolchain import board, tensors
from toolchain.backends import Backend, backend_of
from toolchain.backends.cpu.lowering import PIPELINE
from toolchain.board import Board
from toolchain.compile import compiler
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, inputs, source
from toolchain.models.request import Model
from toolchain.native import programs

AVX512, AVX2, NEON, OPENCL = "x86-64-v4", "x86-64-v3", "rpi4", "opencl-local"
CPUS = (AVX512, AVX2, NEON)
ALL = (*CPUS, OPENCL)

LEAST = 1e-2
"""The largest number of an output, at least, that differences are relative to: what is smaller may be but rounding."""

_TRIPLE = "aarch64-linux-gnu"
_EMULATOR = "qemu-aarch64-static"
_FLAGS = {AVX512: "avx512f", AVX2: "avx2"}


def require_one(name: str) -> None:
    """Leave a test out, or fail it, where networks for a processor cannot be run."""
    if name == OPENCL:
        opencl.require_opencl()
    elif name == NEON:
        require("an emulator for aarch64", "qemu-user-static", shutil.which(_EMULATOR) is not None)
        require("a compiler for aarch64", f"g++-{_TRIPLE}", shutil.which(f"{_TRIPLE}-g++") is not None)
    else:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        require_processor(_FLAGS[name], present=_FLAGS[name] in flags)


def computed(name: str, proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path) -> list[np.ndarray]:
    """Compile a network for a processor, and run it there.

    Args:
        name: The processor, one of `ALL`.
        proto: The network.
        feeds: Its inputs.
        folder: Where to put what is compiled.
    """
    folder.mkdir(exist_ok=True)
    path = nets.save(proto, folder)
    kind = _board(name)
    imported = importer.import_model(source.load(path))
    if name == NEON:
        request = BuildRequest(Model(path, {}, inputs.Source()), kind, toolchain="host")
        result = _emulated(compiler.build(imported, request, folder / "bundle").folder, feeds, folder)
        return [result[spec.name] for spec in imported.outputs]
    backend = backend_of(kind)
    finished = backend.apply_choices(backend.lower(imported.module), {})
    if name == OPENCL:
        device, library = _opencl(backend), str(folder / "net.so")
        tvm.compile(finished, target=backend.target).export_library(library)
        machine = relax.VirtualMachine(tvm.runtime.load_module(library), device)
    else:
        device = tvm.cpu()
        machine = relax.VirtualMachine(tvm.compile(finished, target=backend.target, tir_pipeline=PIPELINE), device)
    feeds_on_device = [tvm.runtime.tensor(feeds[spec.name], device) for spec in imported.source.inputs]
    result = machine["main"](*feeds_on_device)
    return [tensor.numpy() for tensor in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def difference(output: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the largest number; infinite if something else is different."""
    finite = np.isfinite(expected)
    if output.shape != expected.shape or not np.array_equal(output[~finite], expected[~finite], equal_nan=True):
        return np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(output, expected) else np.inf
    ours, theirs = output[finite].astype(np.float64), expected[finite].astype(np.float64)
    gap = np.abs(ours - theirs).max(initial=0) / max(LEAST, np.abs(theirs).max(initial=0))
    return float(gap) if np.isfinite(gap) else np.inf


def _board(name: str) -> Board:
    if name not in _FLAGS:
        return board.load(name).resolved()
    local = board.load("local").resolved()
    return dataclasses.replace(local, target=dataclasses.replace(local.target, mcpu=name))


@functools.cache
def _opencl(backend: Backend) -> tvm.runtime.Device:
    """Return this machine's OpenCL device, whose kernels are not kept; PoCL compiles them in half of the time."""
    os.environ["EDGE_OPENCL_CACHE"] = ""
    os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
    if not tvm.runtime.device("opencl", 0).exist:
        ctypes.CDLL(str(backend.python_runtime(lambda _line: None)))
    return tvm.runtime.device("opencl", 0)


def _emulated(release: Path, feeds: Mapping[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    runner = programs.build(programs.RUNNER, _TRIPLE, "aarch64")
    tensors.save(folder / "inputs", dict(feeds))
    argv = [_EMULATOR, "-L", f"/usr/{_TRIPLE}", runner.path, "--release", release, "--inputs", folder / "inputs"]
    argv += ["--outputs", folder / "outputs", "--report", folder / "report", "--max-runs", "0", "--threads", "2"]
    completed = subprocess.run(list(map(str, argv)), check=False, capture_output=True, text=True, timeout=600)
    if completed.returncode:
        raise RuntimeError(f"the runner ended with {completed.returncode}: {completed.stderr}")
    return load_file(folder / "outputs")
